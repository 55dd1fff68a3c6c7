"""The rendered config.pbtxt of the C++ backend before a real tritonserver, which lacks that backend, nothing else."""

import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as rpc

from engines.engine_cli import engine
from tests.engines.wires.servers import ROOT, serving, triton_ports

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SILENT_MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return None\n"


def options(repository: Path) -> tuple[str, ...]:
    return (*triton_ports(), "--exit-timeout", "3", "--model-repository", str(repository))


def render(recipe: str, repository: Path) -> Path:
    result = CliRunner().invoke(engine, ["render", recipe, "--engine", "/engines/llama", "--out", str(repository)])
    assert result.exit_code == 0, result.output
    return repository / "tensorrt_llm/config.pbtxt"


@pytest.mark.parametrize("recipe", ["llama-3.1-8b-bf16-tp1", "llama-3.1-8b-fp8-tp1-lookahead"])
def test_tritonserver_misses_nothing_but_the_backend(recipe: str, tmp_path: Path) -> None:
    render(recipe, tmp_path)
    command = [sys.executable, "-m", "engines.triton", *options(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    assert ended.returncode == 1
    failures = [line for line in ended.stderr.splitlines() if "failed to load 'tensorrt_llm'" in line]
    assert len(failures) == 1
    assert "unable to find backend library for backend 'tensorrtllm'" in failures[0]


def test_tritonserver_loads_tensors_and_parameters_as_they_were_rendered(tmp_path: Path) -> None:
    """With Python's backend under the same configuration: what Triton itself checks of it is then checked."""
    config = render("llama-3.1-8b-fp8-tp1", tmp_path)
    config.write_text(config.read_text().replace('backend: "tensorrtllm"', 'backend: "python"'))
    (tmp_path / "tensorrt_llm/1/model.py").write_text(SILENT_MODEL)
    with (
        serving("engines.triton", *options(tmp_path), "--start-timeout", "200") as server,
        grpc.insecure_channel(server.addresses[0].removeprefix("grpc://")) as channel,
    ):
        answer = rpc.GRPCInferenceServiceStub(channel).ModelConfig(pb.ModelConfigRequest(name="tensorrt_llm"))
    rendered = text_format.Parse(config.read_text(), model_config_pb2.ModelConfig())
    assert list(answer.config.input) == list(rendered.input)
    assert list(answer.config.output) == list(rendered.output)
    assert dict(answer.config.parameters) == dict(rendered.parameters)
    assert answer.config.model_transaction_policy.decoupled

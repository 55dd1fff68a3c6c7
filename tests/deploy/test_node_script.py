"""deploy/node.sh as a root user runs it, on a host whose programs are stand-ins and whose files lie under DESTDIR.

What the real apt-get, Docker, drivers and engines do is not tried here, nor has it been anywhere yet.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.deploy.shipped import DEPLOY, on_linux

pytestmark = on_linux

PROGRAMS = ("id", "uname", "df", "nvidia-smi", "docker", "apt-get", "curl", "systemctl", "sysctl", "nvidia-ctk", "make")
ASKS = re.compile(
    r"id|uname|df|nvidia-smi (--query|topo)|docker (compose (version|config|exec|logs)|info|image inspect|run)"
    r"|curl .*/(ready|metrics)$|systemctl is-|crossover (engine (verify|--help)|policy show)"
)
H100 = "NVIDIA H100 80GB HBM3, 590.44.01\n" * 4


@dataclass(frozen=True, slots=True)
class Host:
    """A bare host. `state` is what the stand-ins go by, `calls` what they were asked."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def home(self) -> Path:
        return self.folder / "srv"

    @property
    def calls(self) -> list[str]:
        path = self.state / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        (self.state / "calls").unlink(missing_ok=True)
        environment = {
            "PATH": f"{self.folder}/bin:{os.defpath}",
            "STATE": str(self.state),
            "DESTDIR": str(self.folder / "host"),
            "CROSSOVER_CLI": str(self.folder / "bin/crossover"),
        }
        named = ("--checkpoint", str(self.folder / "llama"), "--recipe", "fp8-tp2", "--home", str(self.home))
        return subprocess.run(
            [DEPLOY / "node.sh", *named, *options], env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for folder in ("bin", "state", "host/etc", "llama"):
        (tmp_path / folder).mkdir(parents=True)
    for program in (*PROGRAMS, "crossover"):
        (tmp_path / "bin" / program).symlink_to(Path(__file__).with_name("stand_in.sh"))
    (tmp_path / "host/etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    (tmp_path / "state/gpus").write_text(H100)
    for name in ("config.json", "tokenizer_config.json", "model-00001.safetensors"):
        (tmp_path / "llama" / name).write_text("{}")
    return Host(tmp_path)


def test_a_bare_host_becomes_a_node_step_after_step(host: Host) -> None:
    done = host.run()
    assert (done.returncode, done.stderr) == (0, "")
    made = [call for call in host.calls if not ASKS.match(call)]
    order = (
        "apt-get install --yes ca-certificates",
        "apt-get install --yes nvidia-container-toolkit",
        "sysctl --load",
        "docker compose pull",
        "docker compose build gateway",
        "crossover engine build fp8-tp2",
        "crossover engine render fp8-tp2",
        "docker compose up --detach --wait",
        "systemctl enable crossover-compose.service",
        "crossover calibrate",
    )
    places = [next(index for index, call in enumerate(made) if call.startswith(start)) for start in order]
    assert places == sorted(places)
    assert len(re.findall(r"^   holds( now)?$|fits$", done.stdout, re.MULTILINE)) == 15


def test_a_second_run_asks_and_changes_nothing(host: Host) -> None:
    host.run()
    files = {path: path.read_bytes() for path in host.folder.rglob("*") if path.is_file() and "state" not in path.parts}
    done = host.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert [call for call in host.calls if not ASKS.match(call)] == []
    logs = host.home / "logs"
    assert {path: path.read_bytes() for path in files if path.parent != logs} == {
        path: content for path, content in files.items() if path.parent != logs
    }


def test_a_dry_run_prints_every_command_and_runs_none(host: Host) -> None:
    done = host.run("--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert host.calls == []
    assert not host.home.exists()
    for command in (
        "docker compose up --detach --wait",
        "engine build fp8-tp2",
        "calibrate --url http://127.0.0.1:8080 --apply",
    ):
        assert command in done.stdout
    assert done.stdout.endswith("nothing was\n")
    # Nobody's keys stand in a terminal's history.
    assert "CROSSOVER_OPERATOR_KEY=(made here)" in done.stdout


def test_keys_are_made_once_and_root_alone_reads_them(host: Host) -> None:
    host.run()
    path = host.folder / "host/etc/crossover/compose.env"
    variables = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and line[0] != "#")
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch("[0-9a-f]{48}", variables["CROSSOVER_OPERATOR_KEY"])
    assert variables["TRITON_DIGEST"] == variables["VLLM_DIGEST"] == f"sha256:{7:064d}"
    assert variables["COMPOSE_FILE"] == str(DEPLOY / "compose/compose.yaml")


def test_sharing_takes_both_files_four_ranks_and_a_cache_of_fixed_size(host: Host) -> None:
    (host.state / "world_size").write_text("4")
    done = host.run("--layout", "shared")
    assert done.returncode == 1
    assert "has no max_tokens_in_paged_kv_cache" in done.stderr
    (host.state / "rendered").write_text('key: "max_tokens_in_paged_kv_cache"\nvalue: { string_value: "1500000" }\n')
    done = host.run("--layout", "shared")
    assert done.returncode == 0, done.stderr
    settings = (host.folder / "host/etc/crossover/compose.env").read_text()
    assert f"COMPOSE_FILE={DEPLOY}/compose/compose.yaml:{DEPLOY}/compose/shared.yaml\n" in settings
    assert "TRITON_RANKS=4\n" in settings


QUANTIZED = "state/quantization"
# A file of the host, or of the stand-ins' state, its content (None: it is not there), the step and the message.
FAULTS: tuple[tuple[str, str | None, str, str], ...] = (
    ("host/etc/os-release", "ID=debian\nVERSION_ID=12\n", "host", "this is debian 12"),
    ("state/gpus", "NVIDIA H100 80GB HBM3, 590.44.01\n" * 3, "driver", "four H100 are needed, found: NVIDIA H100"),
    ("state/gpus", "NVIDIA A100-SXM4-80GB, 590.44.01\n" * 4, "driver", "four H100 are needed, found: NVIDIA A100"),
    ("state/gpus", H100.replace("590.44.01", "550.90.07"), "driver", "the driver is of branch 550"),
    ("llama/model-00001.safetensors", None, "checkpoint", "checkpoint has no *.safetensors"),
    ("state/world_size", "4", "engine", "the engine is for 4 GPUs, the layout two-plus-two gives Triton 2"),
    (QUANTIZED, '{"quant_algo": "FP8"}', "engine", "the engine computes in FP8, vLLM as the checkpoint"),
    (QUANTIZED, '{"kv_cache_quant_algo": "FP8"}', "engine", "the engine's KV cache is FP8, vLLM's is not"),
    ("state/rendered", 'string_value: "${max_beam_width}"\n', "repository", "has unfilled placeholders"),
    ("state/vllm_ready", "0.0", "start", "1 of two engines are ready"),
    ("state/findings", "error  vllm: one API process\n", "doctor", "one API process"),
    ("state/calibrate", "3", "calibrate", "crossover calibrate ended with 3"),
)


@pytest.mark.parametrize(("file", "content", "step", "message"), FAULTS)
def test_a_fault_ends_its_step_with_a_cure(host: Host, file: str, content: str | None, step: str, message: str) -> None:
    path = host.folder / file
    path.unlink() if content is None else path.write_text(content)
    done = host.run("--only", step)
    assert done.returncode == 1
    assert f"node.sh: {step}: " in done.stderr
    assert message in done.stderr
    assert "\n  cure: " in done.stderr
    assert "== done" not in done.stdout


def test_without_a_driver_it_installs_one_and_asks_for_a_reboot(host: Host) -> None:
    (host.state / "gpus").unlink()
    done = host.run()
    assert done.returncode == 3
    assert "apt-get install --yes nvidia-headless-590-server-open nvidia-utils-590-server" in host.calls
    assert "reboot, then run this again" in done.stderr


def test_a_node_that_no_single_threshold_fits_has_an_exit_code_of_its_own(host: Host) -> None:
    (host.state / "calibrate").write_text("4")
    done = host.run("--only", "calibrate")
    assert done.returncode == 4
    assert "the node runs; no single threshold is right for it" in done.stderr


def test_an_engine_that_no_longer_fits_is_put_aside_and_built_again(host: Host) -> None:
    host.run()
    (host.home / "engine/mismatch").touch()
    done = host.run("--only", "engine")
    assert done.returncode == 0, done.stderr
    assert "refused  version: built by 1.1.0" in done.stdout
    assert len(list(host.home.glob("engine.refused.*"))) == 1
    assert not (host.home / "engine/mismatch").exists()


def test_vllm_computes_as_the_engine_does(host: Host) -> None:
    (host.state / "quantization").write_text('{"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}')
    done = host.run("--quantization", "fp8", "--kv-cache-dtype", "fp8")
    assert done.returncode == 0, done.stderr
    settings = (host.folder / "host/etc/crossover/compose.env").read_text()
    assert "VLLM_QUANTIZATION=fp8\nVLLM_KV_CACHE_DTYPE=fp8\n" in settings


def test_files_that_an_operator_has_changed_are_not_written_over(host: Host) -> None:
    host.run()
    done = host.run("--model-id", "another")
    assert done.returncode == 1
    assert "compose.env is for another model" in done.stderr
    assert yaml.safe_load((host.home / "crossover.yaml").read_text())["models"][0]["id"] == "llama"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layout", "one"), "--layout: must be two-plus-two or shared, is 'one'"),
        (("--home", "srv"), "--home: must be an absolute path without blanks, is 'srv'"),
        (("--model-id", "a b"), "--model-id: letters, digits"),
        (("--driver", "new"), "--driver: must be a branch like 590, is 'new'"),
        (("--only", "coffee"), "there is no step 'coffee'"),
        (("--layuot", "shared"), "unknown option --layuot"),
        (("--from",), "--from needs a value"),
    ],
)
def test_arguments_that_make_no_sense_are_named(host: Host, options: tuple[str, ...], message: str) -> None:
    done = host.run(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert host.calls == []

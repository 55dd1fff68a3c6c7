"""`crossover doctor` as a user runs it: silence on healthy stacks, findings and exit codes on others."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from deploy.launch import LOGS, Launched
from deploy.stacks import WEIGHTS
from gateway.cli import main
from tests.doctor.conftest import Clinic
from tests.engines.wires.servers import free_ports


def doctor(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)])


def configuration_of(stack: Launched) -> Path:
    return stack.run_dir / "crossover.yaml"


@pytest.fixture
def broken(clinic: Clinic, tmp_path: Path) -> Path:
    """The stack's configuration, but for a vLLM that is not there and a key that is missing."""
    (port,) = free_ports(1)
    document = clinic.configuration({"vllm": {"url": f"http://127.0.0.1:{port}"}}, listen="0.0.0.0:0")
    path = tmp_path / "crossover.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_embedded_stack_is_healthy(embedded_stack: Launched) -> None:
    result = doctor("-c", configuration_of(embedded_stack))
    assert (result.exit_code, result.output) == (0, "")


def test_a_real_triton_and_a_real_vllm_without_a_gpu_are_healthy(cpu_stack: Launched) -> None:
    """Though there are no CUDA graphs on a CPU, and one API process serves 128 requests."""
    log = f"vllm={cpu_stack.run_dir / LOGS / 'vllm.log'}"
    required = "vllm=in_flight_batching,paged_kv,chunked_prefill,prefix_caching"
    result = doctor(
        "-c", configuration_of(cpu_stack), "--log", log, "--require", required, "--require", "triton=in_flight_batching"
    )
    assert (result.exit_code, result.output) == (0, "")


def test_what_a_real_vllm_is_known_to_do_comes_with_its_source(cpu_stack: Launched) -> None:
    log = f"vllm={cpu_stack.run_dir / LOGS / 'vllm.log'}"
    result = doctor("-c", configuration_of(cpu_stack), "--log", log, "--no-generate", "--json")
    document = json.loads(result.output)
    account = document["engines"]["vllm (crossover-mini)"]["account"]
    told = {topic: statement["value"] for topic, statement in account.items()}
    assert told["cuda_graphs"] is False
    assert told["prefix_caching"] is True
    assert told["chunked_prefill"] is True
    assert told["is_on_gpu"] is False
    assert (told["context_length"], told["capacity"]) == (1024, 128)
    assert account["has_same_prompts"]["source"] == "its /tokenize, of 3 texts and 2 chats"
    assert "its log" in account["chunked_prefill"]["source"]
    assert document["engines"]["triton (crossover-mini)"]["identity"]["engine"] == "triton"


def test_a_chat_template_that_is_not_the_engines_is_found_by_a_real_vllm(cpu_stack: Launched, tmp_path: Path) -> None:
    """The same tokenizer: texts have the same ids, chats have not."""
    weights = shutil.copytree(WEIGHTS, tmp_path / "weights", ignore=shutil.ignore_patterns("*.safetensors"))
    template = weights / "chat_template.jinja"
    template.write_text(template.read_text() + "Well,")
    document = yaml.safe_load(configuration_of(cpu_stack).read_text())
    document["models"][0]["tokenizer"] = str(weights)
    path = tmp_path / "crossover.yaml"
    path.write_text(yaml.safe_dump(document))
    result = doctor("-c", path, "--no-generate")
    assert result.exit_code == 1
    assert result.output.startswith("error: prompt-mismatch: vllm (crossover-mini)\n  seen: a chat (user) has ")
    assert "one ends where the other goes on" in result.output


def test_verbose_says_what_is_proved_and_by_what(embedded_stack: Launched) -> None:
    result = doctor("-v", "--no-generate", "-c", configuration_of(embedded_stack))
    assert result.exit_code == 0
    assert "paged_kv: on, by its metrics page, which counts" in result.output
    assert "cuda_graphs: unknown" in result.output
    assert "identity: engine=triton, version=" in result.output


def test_findings_are_named_with_their_cures_and_exit_with_1(broken: Path) -> None:
    result = doctor("-c", broken, "--no-generate")
    assert result.exit_code == 1
    first, second = result.output.strip().split("\n\n")
    assert first.startswith("error: unreachable: vllm (crossover-mini)\n  seen: at http://127.0.0.1:")
    assert first.endswith("cure: Start the engine, or correct the backend's `url`.")
    assert second.startswith("error: open-to-everyone: gateway\n")


def test_json_has_every_finding_with_its_cure(broken: Path) -> None:
    result = doctor("-c", broken, "--no-generate", "--json")
    assert result.exit_code == 1
    findings: list[dict[str, Any]] = json.loads(result.output)["findings"]  # Any: JSON
    assert [finding["code"] for finding in findings] == ["unreachable", "open-to-everyone"]
    assert all(set(finding) == {"code", "severity", "where", "seen", "meaning", "cure"} for finding in findings)


def test_a_feature_that_is_credited_and_not_shown_is_an_error(embedded_stack: Launched, tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text("Graph capturing finished in 9 secs, took 0.61 GiB\n")
    options = ("-c", configuration_of(embedded_stack), "--no-generate", "--require", "vllm=cuda_graphs")
    refused = doctor(*options)
    assert refused.exit_code == 1
    assert "error: credited-not-shown: vllm (crossover-mini)" in refused.output
    assert doctor(*options, "--log", f"vllm={tmp_path / 'vllm.log'}").exit_code == 0


def test_where_no_engine_answers_the_exit_code_is_2(clinic: Clinic, tmp_path: Path) -> None:
    one, other = free_ports(2)
    document = clinic.configuration({
        "vllm": {"url": f"http://127.0.0.1:{one}"},
        "triton": {"url": f"grpc://127.0.0.1:{other}"},
    })
    path = tmp_path / "crossover.yaml"
    path.write_text(yaml.safe_dump(document))
    result = doctor("-c", path)
    assert result.exit_code == 2
    assert result.output.count("unreachable") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--log", "vllm"), "'vllm' must begin with a backend's name and ="),
        (("--log", "vllm=/no/such/file"), "/no/such/file is no file"),
        (("--log", "sglang=/dev/null"), "no backend is called 'sglang' (triton, vllm are)"),
        (("--require", "vllm=warp_drive"), "'warp_drive' is none of in_flight_batching, paged_kv"),
    ],
)
def test_bad_arguments_are_usage_errors(broken: Path, arguments: tuple[str, ...], message: str) -> None:
    result = doctor("-c", broken, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_configuration_that_cannot_be_used_is_told_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "crossover.yaml"
    path.write_text("models: []\nlisten: here\n")
    result = doctor("-c", path)
    assert result.exit_code == 2
    assert f"crossover doctor: {path}: listen: must look like host:port" in result.output
    assert doctor("-c", tmp_path / "none.yaml").exit_code == 2


def test_help_has_an_example() -> None:
    result = doctor("--help")
    assert result.exit_code == 0
    assert "crossover doctor -c crossover.yaml --log vllm=vllm.log" in result.output

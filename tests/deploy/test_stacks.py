"""What a stack renders, and its error where it is not installed."""

import json
from pathlib import Path

import pytest

from deploy.cpu import StackMissing, cpu
from deploy.embedded import PAIRS, Pace, embedded
from deploy.stacks import MODEL, WEIGHTS, Stack, copy_tokenizer
from gateway.configuration import load_settings
from gateway.routing.policies import Threshold
from gateway.settings import TritonSettings, VLLMSettings


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that looks like .stacks/ after `make stacks`."""
    for name in ("triton", "vllm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".installed").touch()
    return tmp_path


def read_port(stack: Stack, engine: str, option: str) -> str:
    [command] = [process.command for process in stack.engines if process.name == engine]
    return command[command.index(option) + 1]


@pytest.mark.parametrize("name", ["embedded", "cpu"])
def test_rendered_configuration_is_what_the_gateway_reads(name: str, installed: Path, tmp_path: Path) -> None:
    stack = embedded() if name == "embedded" else cpu(tmp_path, installed)
    path = tmp_path / "crossover.yaml"
    path.write_text(stack.configuration(18080))
    settings = load_settings(path, environ={})
    [model] = settings.models
    triton, vllm = model.backends["triton"], model.backends["vllm"]
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 18080)
    assert (model.id, model.tokenizer) == (MODEL, WEIGHTS)
    assert isinstance(triton, TritonSettings)
    assert isinstance(vllm, VLLMSettings)
    assert triton.url.endswith(":" + read_port(stack, "triton", "--grpc-port"))
    assert vllm.url.endswith(":" + read_port(stack, "vllm", "--port"))
    assert isinstance(model.policy, Threshold)
    assert (model.policy.low, model.policy.high) == ("triton", "vllm")


@pytest.mark.parametrize("pair", PAIRS)
def test_pace_reaches_both_engines_with_its_own_part_of_the_pair(pair: str) -> None:
    stack = embedded(Pace(time_scale=12.5, answer_tokens=32, name=pair))
    for engine, role in (("triton", "low"), ("vllm", "high")):
        assert read_port(stack, engine, "--pace") == f"{pair}:{role}"
        assert read_port(stack, engine, "--time-scale") == "12.5"


def test_a_recited_pairs_tokenizer_is_the_models_with_a_longer_context(tmp_path: Path) -> None:
    assert embedded(Pace(2.0, 32)).context_length is None
    assert embedded(Pace(2.0, 32, "tp-dp")).context_length == 8192
    folder = copy_tokenizer(WEIGHTS, tmp_path / "tokenizer", 8192)
    copied = {file.name for file in folder.iterdir()}
    assert copied == {file.name for file in WEIGHTS.iterdir()} - {"model.safetensors"}
    assert (folder / "tokenizer.json").read_bytes() == (WEIGHTS / "tokenizer.json").read_bytes()
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 8192
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == 8192


def test_missing_engines_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    with pytest.raises(StackMissing, match=r"triton is not installed: run `make stacks`"):
        cpu(tmp_path, tmp_path)

from pathlib import Path

import pytest

from loadtest.results.hardware import Hardware, find_contradiction, list_gpus, read_hardware
from loadtest.results.system import Engines

DECLARED = {"triton": Hardware(engine={"precision": "fp8", "max_batch": 256}), "vllm": Hardware()}


def test_hardware_is_read_by_backend(tmp_path: Path) -> None:
    file = tmp_path / "hardware.yaml"
    file.write_text("triton: {weights_gb: 8, bandwidth_gb_s: 3350, gpus: 2}\nvllm: {engine: {precision: fp8}}\n")
    declared = read_hardware(file)
    assert declared["triton"] == Hardware(weights_gb=8, bandwidth_gb_s=3350, gpus=2)
    assert declared["triton"].find_bandwidth_share(0.004) == pytest.approx(8 / 6700 / 0.004)
    assert declared["vllm"].find_bandwidth_share(0.01) is None
    assert list_gpus(declared) == {"triton": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("triton: {weights_gb: 8}", "triton: .*weights_gb and bandwidth_gb_s are declared together"),
        ("triton: {engine: {precision: [1]}}", "triton.engine.precision"),
        ("triton: {weights_gb: 8, bandwidth_gb_s: 0}", "triton.bandwidth_gb_s: Input should be greater than 0"),
        ("triton: {weights_gb: 8, bandwidth_gb_s: 1, gpu: 2}", "triton.gpu: "),
        ("- 1", "Input should be a valid dictionary"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_declaration_that_is_wrong_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hardware.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_hardware(file)


@pytest.mark.parametrize(
    ("engines", "backends", "wrong"),
    [
        ({}, ("triton", "vllm"), None),
        ({"triton": {"max_batch": 256, "version": "1.2"}}, ("triton", "vllm"), None),
        (
            {"triton": {"max_batch": 128}},
            ("triton", "vllm"),
            "triton's max_batch was declared as 256, and the engine says 128",
        ),
        ({}, ("triton", "sglang"), "vllm was declared, and the backends are triton and sglang"),
    ],
)
def test_a_declaration_that_the_engine_contradicts_is_named(
    engines: Engines, backends: tuple[str, str], wrong: str | None
) -> None:
    assert find_contradiction(DECLARED, engines, backends) == wrong

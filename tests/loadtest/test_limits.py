"""The limits of checks: one table in the code, the same in the documentation, and what users may change."""

from pathlib import Path

import pytest

from loadtest.engines import Engines
from loadtest.hardware import Hardware, find_contradiction, read_hardware
from loadtest.limits import LOOSE, USUAL, Limits

PAGE = Path(__file__).parents[2] / "docs" / "calibration.md"


def test_the_documentation_has_every_limit_with_its_figures_and_reason() -> None:
    rows = [
        f"| `{name}` | {usual:g} | {getattr(LOOSE, name):g} | {reason} |"
        for name, (usual, reason) in Limits.reasons().items()
    ]
    told = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 5]
    assert [line for line in told if line.split("`")[1] in Limits.names()] == rows


def test_a_limit_is_changed_by_name() -> None:
    changed = USUAL.changed(["client_cpu=0.9", "unsteady = 1"])
    assert (changed.client_cpu, changed.unsteady, changed.evenness) == (0.9, 1.0, USUAL.evenness)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("client_cpu", "client_cpu: no such limit; NAME=VALUE with one of in_flight, fill_gap"),
        ("cpu=1", "cpu=1: no such limit"),
        ("client_cpu=much", "client_cpu=much: no number"),
        ("client_cpu=-1", "client_cpu=-1: a limit is 0 or more"),
        ("client_cpu=nan", "client_cpu=nan: a limit is 0 or more"),
        ("client_cpu=inf", "client_cpu=inf: a limit is 0 or more"),
    ],
)
def test_what_is_no_limit_is_told(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        USUAL.changed([setting])


def test_hardware_is_read_by_backend(tmp_path: Path) -> None:
    file = tmp_path / "hardware.yaml"
    file.write_text("triton: {weights_gb: 8, bandwidth_gb_s: 3350, gpus: 2}\n")
    assert read_hardware(file) == {"triton": Hardware(weights_gb=8, bandwidth_gb_s=3350, gpus=2)}
    assert read_hardware(file)["triton"].used(0.004) == pytest.approx(8 / 6700 / 0.004)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("triton: {weights_gb: 8}", "triton: .*weights_gb and bandwidth_gb_s say something together only"),
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


DECLARED = {"triton": Hardware(engine={"precision": "fp8", "max_batch": 256}), "vllm": Hardware()}


@pytest.mark.parametrize(
    ("engines", "backends", "wrong"),
    [
        ({}, ("triton", "vllm"), None),
        ({"triton": {"max_batch": 256, "version": "1.2"}}, ("triton", "vllm"), None),
        (
            {"triton": {"max_batch": 128}},
            ("triton", "vllm"),
            "triton's max_batch was declared as 256, and the",
        ),
        ({}, ("triton", "sglang"), "vllm was declared, and the backends are triton and sglang"),
    ],
)
def test_a_declaration_is_held_against_what_engines_tell(
    engines: Engines, backends: tuple[str, str], wrong: str | None
) -> None:
    found = find_contradiction(DECLARED, engines, backends)
    assert (found or "").startswith(wrong or "")
    assert (found is None) == (wrong is None)


def test_what_is_declared_of_an_engine_alone_claims_nothing_of_its_memory() -> None:
    assert Hardware(engine={"precision": "fp8"}).used(0.01) is None

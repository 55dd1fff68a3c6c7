"""The node's facts, read from what nvidia-smi and Python print."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from engines.directory.node import PROBE, NodeFacts, detect, read_gpus, read_versions
from engines.trtllm.steps import Host

H100 = "NVIDIA H100 80GB HBM3"
BANNER = "=============================\n== Triton Inference Server ==\n=============================\n\n"


@pytest.mark.parametrize(
    ("output", "gpus"),
    [
        (f"{H100}, 9.0, 590.44.01\n{H100}, 9.0, 590.44.01\n", [(H100, "9.0", "590.44.01")] * 2),
        ("", []),
        ("No devices were found\n", []),
    ],
)
def test_gpus_are_read_a_line_each(output: str, gpus: list[tuple[str, str, str]]) -> None:
    assert read_gpus(output) == gpus


@pytest.mark.parametrize(
    ("output", "versions"),
    [
        (f'{BANNER}{{"tensorrt_llm": "1.2.1"}}\n', {"tensorrt_llm": "1.2.1"}),
        (BANNER, {}),
        ("{not json", {}),
    ],
)
def test_versions_are_read_behind_an_images_banner(output: str, versions: dict[str, str]) -> None:
    assert read_versions(output) == versions


def test_pythons_own_distributions_answer_the_question() -> None:
    answer = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert read_versions(answer.stdout)["prometheus_client"] == version("prometheus-client")


def test_facts_that_nothing_reports_stay_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect(Host()) == NodeFacts()

"""`crossover fabric` from options to tables: on GPUs that a script stands in for, and on real torch with gloo."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.cpu import STACKS
from engines.fabric.cli import fabric
from tests.engines.fabric.gpus import make_python, write_config

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def run(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(fabric, list(map(str, arguments)))


def test_times_are_reported_with_their_share_of_the_link(tmp_path: Path) -> None:
    outcome = run("--python", make_python(tmp_path, H100, H100), "--repeats", 1)
    assert outcome.exit_code == 0, outcome.output
    for line in (
        "TP 2, GPUs 0, 1",
        "Small messages: 10 us for 1 KiB from a CUDA graph, 25 us called one by one",
        "All sizes together: 10 us + size / 300 GB/s, which misses single sizes by up to 0%.",
        "Bus bandwidth at best: 299 GB/s at 1 GiB, 66% of the link.",
        "Set: NCCL_NVLS_ENABLE=0.",
    ):
        assert line in outcome.stdout
    assert "NO PEER ACCESS" not in outcome.stdout


def test_every_degree_that_there_are_gpus_for_is_measured_and_compared(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, H100, H100, H100, H100), write_config(tmp_path / "llama-8b")
    outcome = run("--python", python, "--repeats", 1, "--model", model, "--json", "--out", tmp_path / "out")
    document = json.loads(outcome.stdout)
    assert (document["schema"], document) == (
        "crossover.fabric/1",
        json.loads((tmp_path / "out/fabric.json").read_text()),
    )
    assert [(each["tp"], each["devices"]) for each in document["tp"]] == [(2, [0, 1]), (4, [0, 1, 2, 3])]
    decode = {row["in_flight"]: row for row in document["forecast"]["decode"]}
    assert [step["tp"] for step in decode[1]["steps"]] == [1, 2, 4]
    reduce_s = decode[1]["steps"][1]["reduce_s"]
    assert reduce_s == pytest.approx(2 * 32 * (1e-5 + 8192 / 300e9), rel=1e-3)  # two a layer, replayed from a graph
    prompt = document["forecast"]["prefill"][0]
    message = 128 * 8192
    assert prompt["steps"][1]["reduce_s"] == pytest.approx(64 * (2.5e-5 + message / 300e9), rel=1e-3)  # called eagerly
    report = (tmp_path / "out/fabric.md").read_text()
    for line in ("Decode: TP ", "One prompt alone: TP ", "Prompts at capacity: TP 1 at all loads."):
        assert line in report
    assert "| in flight | 4 x TP 1 | 2 x TP 2, of it sums | 1 x TP 4, of it sums | best |" in report


def test_gpus_that_do_not_reach_each_other_are_reported(tmp_path: Path) -> None:
    outcome = run("--python", make_python(tmp_path, H200, H200, has_peers=False), "--repeats", 1)
    assert "NO PEER ACCESS between GPUs 0 and 1: what they exchange goes through the host." in outcome.stdout


def test_a_gpu_that_is_not_listed_has_no_share_and_needs_its_memory_bandwidth(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, "Other", "Other"), write_config(tmp_path / "m")
    assert "of link" not in run("--python", python, "--repeats", 1).stdout
    outcome = run("--python", python, "--repeats", 1, "--model", model)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "the memory bandwidth of Other is not known here: give it with --memory-gb-s" in outcome.stderr
    outcome = run("--python", python, "--repeats", 1, "--model", model, "--memory-gb-s", 2000)
    assert "No forecast of prefill: the GPU's arithmetic is not known (--tflops)." in outcome.stdout


@pytest.mark.parametrize(
    ("gpus", "arguments", "message"),
    [
        ((), (), "it takes two GPUs, and torch sees 0"),
        ((H100, H100), ("--gpus", "0"), "it takes two GPUs"),
        ((H100, H100), ("--gpus", "0,2"), "--gpus: there is no GPU 2, torch sees 2"),
        ((H100, H100), ("--tp", "2,4"), "--tp 4 takes as many GPUs, and there are 2"),
        ((H100, H200), (), f"the GPUs are not alike ({H100} and {H200}): choose some with --gpus"),
        ((H100, H100), ("--tp", "1"), "--tp: a sum is shared by at least two"),
        ((H100, H100), ("--gpus", "0,0"), "each once"),
        ((H100, H100), ("--gpus", "a"), "whole numbers with commas between them"),
        ((H100, H100), ("--most", "5x"), "a size in bytes, KiB, MiB or GiB"),
        ((H100, H100), ("--least", "1M", "--most", "1k"), "--most: below --least"),
        ((H100, H100), ("--backend", "gloo", "--gpus", "0,1"), "--gpus: gloo is measured on this CPU"),
        ((H100, H100), ("--model", __file__), "is no JSON"),
        ((H100, H100), ("--repeats", "1", "--out", "/dev/null/out"), "cannot write to"),
    ],
)
def test_a_problem_ends_the_command_with_its_message(
    tmp_path: Path, gpus: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    outcome = run("--python", make_python(tmp_path, *gpus), *arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())


BROKEN = "import torch.distributed; torch.distributed.all_reduce = lambda tensor, op=None: None\n"


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_ranks_that_do_not_sum_are_found_out(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}\nexec {STACKS / "vllm/bin/python"} "$@"\n')
    python.chmod(0o755)
    outcome = run("--backend", "gloo", "--tp", "2", "--most", "4k", "--repeats", 1, "--python", python)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "an all-reduce of 1024 bytes gave a wrong sum" in outcome.stderr


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_real_ranks_sum_and_are_timed() -> None:
    sizes = ("--most", "64k", "--repeats", 2)
    outcome = run("--backend", "gloo", "--tp", "3", *sizes, "--python", STACKS / "vllm/bin/python", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    (measured,) = json.loads(outcome.stdout)["tp"]
    timings = measured["curves"]["eager"]["sizes"]
    assert [timing["bytes"] for timing in timings] == [1 << power for power in range(10, 17)]
    assert all(0 < timing["least_s"] <= timing["median_s"] <= timing["most_s"] for timing in timings)
    assert {timing["repeats"] for timing in timings} == {2}
    assert timings[0]["bus_gb_s"] == pytest.approx(4 / 3 * 1024 / timings[0]["median_s"] / 1e9)

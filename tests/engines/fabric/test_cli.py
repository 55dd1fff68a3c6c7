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


def test_sums_are_told_with_their_share_of_the_link(tmp_path: Path) -> None:
    outcome = run("--python", make_python(tmp_path, H100, H100), "--repeats", 1)
    assert outcome.exit_code == 0, outcome.output
    assert "TP 2, GPUs 0, 1" in outcome.stdout
    assert "Small messages: 10 us for 1 KiB from a CUDA graph, 25 us called one by one" in outcome.stdout
    assert "All sizes together: 10 us + size / 300 GB/s, which misses single sizes by up to 0%." in outcome.stdout
    assert "Bus bandwidth at best: 299 GB/s at 1 GiB, 66% of the link." in outcome.stdout
    assert "Set: NCCL_NVLS_ENABLE=0." in outcome.stdout
    assert "NO PEER ACCESS" not in outcome.stdout


def test_every_degree_that_there_are_gpus_for_is_measured_and_weighed(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, H100, H100, H100, H100), write_config(tmp_path / "llama-8b")
    outcome = run("--python", python, "--repeats", 1, "--model", model, "--json")
    document = json.loads(outcome.stdout)
    assert [(each["tp"], each["devices"]) for each in document["tp"]] == [(2, [0, 1]), (4, [0, 1, 2, 3])]
    decode = {row["in_flight"]: row for row in document["forecast"]["decode"]}
    assert [step["tp"] for step in decode[1]["steps"]] == [1, 2, 4]
    sums = decode[1]["steps"][1]["reduce_s"]
    assert sums == pytest.approx(2 * 32 * (1e-5 + 8192 / 300e9), rel=1e-3)  # two a layer, replayed from a graph
    prompt = document["forecast"]["prefill"][0]
    message = 128 * 8192
    assert prompt["steps"][1]["reduce_s"] == pytest.approx(64 * (2.5e-5 + message / 300e9), rel=1e-3)  # called eagerly


def test_the_report_names_a_degree_for_every_regime(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, H100, H100, H100, H100), write_config(tmp_path / "llama-8b")
    outcome = run("--python", python, "--repeats", 1, "--model", model, "--out", tmp_path / "out")
    told = (tmp_path / "out" / "fabric.md").read_text()
    for regime in ("Decode: TP ", "One prompt alone: TP ", "Prompts at capacity: TP 1 at all loads."):
        assert regime in outcome.stdout
        assert regime in told
    assert "| in flight | 4 x TP 1 | 2 x TP 2, of it sums | 1 x TP 4, of it sums | best |" in told
    assert json.loads((tmp_path / "out" / "fabric.json").read_text())["schema"] == "crossover.fabric/1"


def test_gpus_that_do_not_reach_each_other_are_told(tmp_path: Path) -> None:
    outcome = run("--python", make_python(tmp_path, H200, H200, has_peers=False), "--repeats", 1)
    assert "NO PEER ACCESS between GPUs 0 and 1: what they exchange goes through the host." in outcome.stdout


def test_sums_beyond_what_was_measured_are_told(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, H100, H100), write_config(tmp_path / "llama-8b")
    told = "Beyond 1 MiB nothing was measured"
    assert told in run("--python", python, "--repeats", 1, "--model", model, "--most", "1M").stdout
    assert told not in run("--python", python, "--repeats", 1, "--model", model, "--most", "64M").stdout


def test_a_model_that_fits_nowhere_has_no_recommendation(tmp_path: Path) -> None:
    model = write_config(tmp_path / "big", num_hidden_layers=2000)
    outcome = run("--python", make_python(tmp_path, H100, H100), "--repeats", 1, "--model", model)
    assert outcome.exit_code == 0
    assert "Left out: TP 2: " in outcome.stdout
    assert "No degree of tensor parallelism is left" in outcome.stdout


def test_a_gpu_that_is_not_listed_has_no_share_and_needs_its_memory_told(tmp_path: Path) -> None:
    python, model = make_python(tmp_path, "Other", "Other"), write_config(tmp_path / "m")
    outcome = run("--python", python, "--repeats", 1)
    assert "of link" not in outcome.stdout
    outcome = run("--python", python, "--repeats", 1, "--model", model)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert "the memory bandwidth of Other is not known here: say it with --memory-gb-s" in outcome.stderr
    outcome = run("--python", python, "--repeats", 1, "--model", model, "--memory-gb-s", 2000)
    assert "Prefill is not told: the GPU's arithmetic is not known (--tflops)." in outcome.stdout


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
    ],
)
def test_what_cannot_be_tried_is_said_at_once(
    tmp_path: Path, gpus: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    outcome = run("--python", make_python(tmp_path, *gpus), *arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = run("--python", make_python(tmp_path, H100, H100), "--repeats", 1, "--out", tmp_path / "file" / "out")
    assert outcome.exit_code == 2
    assert "cannot write to" in outcome.stderr


BROKEN = """
import runpy, sys, torch.distributed
torch.distributed.all_reduce = lambda tensor, op=None: None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_ranks_that_do_not_sum_are_found_out(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {STACKS / "vllm/bin/python"} {tmp_path / "broken.py"} "$@"\n')
    python.chmod(0o755)
    outcome = run("--backend", "gloo", "--tp", "2", "--most", "4k", "--repeats", 1, "--python", python)
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert "an all-reduce of 1024 bytes gave a wrong sum" in outcome.stderr


@pytest.mark.stack
@pytest.mark.timeout(300)
def test_real_ranks_sum_and_are_timed(tmp_path: Path) -> None:
    sizes = ("--most", "64k", "--repeats", 2)
    outcome = run("--backend", "gloo", "--tp", "3", *sizes, "--python", STACKS / "vllm/bin/python", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    (measured,) = document["tp"]
    sizes = measured["curves"]["eager"]["sizes"]
    assert [size["bytes"] for size in sizes] == [1 << power for power in range(10, 17)]
    assert all(0 < size["least_s"] <= size["median_s"] <= size["most_s"] for size in sizes)
    assert {size["repeats"] for size in sizes} == {2}
    assert sizes[0]["bus_gb_s"] == pytest.approx(4 / 3 * 1024 / sizes[0]["median_s"] / 1e9)

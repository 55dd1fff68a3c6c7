"""Every self-check, provoked: the command in a process of its own, on a gateway that misbehaves on a real socket."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed
from tests.loadtest.test_calibrate import HIGH, LOW, SHORT, Outcome, calibrate, read_result, start

pytestmark = pytest.mark.timeout(180)  # each calibrates once
SWEEP = ("--quick", "--tokens", "8", "--window", "0.4", "--levels", "1,8,16", "--budget", "0")
FAST = Speed(base_s=0.004, per_request_s=0.0004)


def statuses(out: Path) -> dict[str, str]:
    """The worst of each name."""
    order = ("passed", "note", "warning", "failed")
    found: dict[str, str] = {}
    for check in read_result(out)["checks"]:
        found[check["name"]] = max(found.get(check["name"], "passed"), check["status"], key=order.index)
    return found


def is_refused(outcome: Outcome, out: Path, name: str, message: str) -> bool:
    """By this check, with exit code 3, and nothing to apply."""
    result = read_result(out)
    return (
        outcome.exit_code == 3
        and message in outcome.stdout
        and (result["status"], result["threshold"], result["applied"]) == ("untrusted", None, None)
        and statuses(out).get(name, "failed") == "failed"
    )


@pytest.mark.parametrize(
    ("faults", "name", "message"),
    [
        (Faults(short_answer=12), "equal work", "UNEQUAL WORK: "),
        (Faults(stop_reason=True), "equal work", "(finish=stop); check ignore_eos/min_tokens support"),
        (Faults(no_usage=True), "equal work", "NO USAGE: "),
        (Faults(misrouted_answer=12), "routing", "MISROUTED: a request pinned to "),
        (Faults(error_answer=12), "errors", "REQUEST FAILED: "),
        (Faults(cut_answer=12), "errors", "REQUEST FAILED: "),
        (Faults(cached_tokens=5), "cold cache", "PREFIX CACHE: "),
        (Faults(pause_every=12), "steady load", "NOT STEADY: "),
    ],
)
async def test_a_run_is_refused(tmp_path: Path, faults: Faults, name: str, message: str) -> None:
    async with FakeGateway(LOW, HIGH, faults) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SWEEP, "--apply", "--limit", "unsteady=0.1")
        assert gateway.policy["version"] == 1
    assert is_refused(outcome, tmp_path, name, message), outcome


async def test_a_run_whose_requests_are_served_in_batches_is_refused(tmp_path: Path) -> None:
    """An engine that lets nobody in before all are answered: everybody then starts at once."""
    async with FakeGateway(FAST, FAST, Faults(batches_on="vllm")) as gateway:
        outcome = await calibrate(
            gateway, tmp_path, *SWEEP, "--limit", "unsteady=1", "--levels", "16,32", "--window", "1"
        )
    assert is_refused(outcome, tmp_path, "no lockstep", "LOCKSTEP R="), outcome


async def test_a_run_whose_client_starves_is_refused(tmp_path: Path) -> None:
    """Stopped for half of each tenth of a second, as a machine does that has too much to do."""
    async with FakeGateway(LOW, HIGH) as gateway:
        process = await start(gateway, tmp_path, *SWEEP, "--limit", "client_lag=1", "--limit", "unsteady=0.1")
        waiting = asyncio.ensure_future(process.communicate())
        with suppress(ProcessLookupError):  # it has ended
            while not waiting.done():
                process.send_signal(signal.SIGSTOP)
                await asyncio.sleep(0.05)
                process.send_signal(signal.SIGCONT)
                await asyncio.wait([waiting], timeout=0.05)
        await waiting
        stdout, stderr = waiting.result()
    assert process.returncode is not None
    outcome = Outcome(process.returncode, stdout.decode(), stderr.decode())
    assert is_refused(outcome, tmp_path, "client headroom", "CLIENT-BOUND at c="), outcome


@pytest.mark.parametrize(
    ("weights_gb", "message"),
    [(0.001, "LAUNCH-BOUND? triton c1 decode is "), (1000.0, "IMPOSSIBLE: triton c1 decode reads ")],
)
async def test_a_run_against_physics_is_refused(tmp_path: Path, weights_gb: float, message: str) -> None:
    declared = tmp_path / "hardware.yaml"
    declared.write_text(f"triton: {{weights_gb: {weights_gb}, bandwidth_gb_s: 3350}}")
    async with FakeGateway(LOW, HIGH) as gateway:
        outcome = await calibrate(gateway, tmp_path / "runs", *SWEEP, "--hardware", str(declared))
    assert is_refused(outcome, tmp_path / "runs", "physics", message), outcome


@pytest.mark.alone
async def test_a_run_on_a_machine_that_throttles_is_refused(tmp_path: Path) -> None:
    """The second of two equal measurements finds another backend: so it may be with any pair."""
    full = ("--tokens", "8", "--window", "0.3", "--levels", "2,4", "--budget", "0")
    quiet = ("in_flight=0", "fill_gap=9", "evenness=0", "client_pause=9", "client_lag=9", "client_cpu=9")
    steady = Speed(base_s=0.006, per_request_s=0.0002)
    async with FakeGateway(steady, steady, Faults(fast_steps=130)) as gateway:  # a cell's and the probe's
        outcome = await calibrate(gateway, tmp_path, *full, *(word for limit in quiet for word in ("--limit", limit)))
    assert is_refused(outcome, tmp_path, "null", "NOT NULL: a backend against itself differs by -"), outcome.stdout


async def test_chunks_of_several_tokens_and_one_rate_for_both_are_warned_of(tmp_path: Path) -> None:
    """Neither makes the threshold wrong: TPOT is right whatever a chunk holds, and a plateau is nobody's crossing."""
    serial = Speed(base_s=0.0, per_request_s=0.002)
    async with FakeGateway(serial, serial, Faults(merges_on="vllm")) as gateway:
        outcome = await calibrate(gateway, tmp_path, *SWEEP, "--limit", "plateau=0.15")
    assert outcome.exit_code in {0, 4}, outcome.stdout
    found = statuses(tmp_path)
    assert (found["chunking"], found["gateway headroom"]) == ("warning", "warning"), outcome
    assert "CHUNKING DIFFERS: triton 1.00 vs vllm 2.0" in outcome.stdout
    assert "GATEWAY-BOUND: both backends plateau within 15% at " in outcome.stdout


async def test_a_policy_that_fares_worse_than_one_backend_alone_is_taken_back(tmp_path: Path) -> None:
    """Routing that sends everything to the backend of high loads, whatever the policy says."""
    async with FakeGateway(LOW, HIGH, Faults(routes_to="vllm")) as gateway:
        before = dict(gateway.policy)
        outcome = await calibrate(gateway, tmp_path, *SHORT, "--accept-wide", "--apply", "--regret", "2")
        now = gateway.policy
    assert outcome.exit_code == 5, outcome
    assert "REGRET: with routing live, c=" in outcome.stdout
    assert [now[key] for key in ("up", "down", "calibration", "by")] == [
        before[key] for key in ("up", "down", "calibration", "by")
    ]
    result = read_result(tmp_path)
    assert (result["status"], result["threshold"], result["applied"]) == ("regretted", None, None)
    assert {loss["best"] for loss in result["routed"]} == {"triton", "vllm"}
    assert {name for loss in result["routed"] for name in loss["served"]} == {"vllm"}


async def test_a_policy_that_serves_well_with_routing_live_stays(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        outcome = await calibrate(
            gateway, tmp_path, *SHORT, "--accept-wide", "--apply", "--regret", "2", "--limit", "regret=0.3"
        )
        assert outcome.exit_code == 0, outcome
        assert gateway.policy["calibration"] == read_result(tmp_path)["run"]
    result = read_result(tmp_path)
    assert statuses(tmp_path)["regret"] == "passed"
    served = {loss["level"]: set(loss["served"]) for loss in result["routed"]}
    assert served[min(served)] == {"triton"}
    assert "vllm" in served[max(served)]


@pytest.mark.parametrize("slow_policy_s", [0.0, 1.0], ids=["while it is tried", "while it is set"])
async def test_a_policy_that_was_not_tried_to_the_end_is_taken_back(tmp_path: Path, slow_policy_s: float) -> None:
    async with FakeGateway(LOW, HIGH, Faults(slow_policy_s=slow_policy_s)) as gateway:
        before = dict(gateway.policy)
        process = await start(gateway, tmp_path, *SHORT, "--accept-wide", "--apply", "--regret", "9")
        waiting = asyncio.ensure_future(process.communicate())
        while gateway.policy["calibration"] is None and not waiting.done():  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        await waiting
        assert process.returncode == 130
        assert {key: gateway.policy[key] for key in before if key != "version"} == {
            key: value for key, value in before.items() if key != "version"
        }

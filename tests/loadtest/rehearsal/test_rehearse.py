"""`crossover rehearse` against a gateway whose two backends have speeds that are known."""

import json
from pathlib import Path

import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from loadtest.rehearsal.trace_file import read_trace
from loadtest.rehearse_cli import rehearse
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

LOW, HIGH = Speed(base_s=0.01, per_request_s=0.002), Speed(base_s=0.02, per_request_s=0.0004)
NODE = {
    "low": {"steps_ms": [[1, 12], [10, 30]], "max_sequences": 10},
    "high": {"steps_ms": [[1, 20.4], [10, 24]], "max_sequences": 10},
    "answer_tokens": 6,
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    requests = [{"at": number / 40, "prompt_tokens": 30, "tokens": 4 + number % 3} for number in range(60)]
    (tmp_path / "rush.jsonl").write_text("\n".join(map(json.dumps, requests)))
    (tmp_path / "node.json").write_text(json.dumps(NODE))
    return tmp_path


async def run(gateway: FakeGateway, files: Path, *options: str) -> Result:
    """In a thread: the command has an event loop of its own."""
    places = ("--url", gateway.url, "--node", str(files / "node.json"), "--out", str(files / "run"))
    trace = () if "--trace" in options else ("--trace", str(files / "rush.jsonl"))
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(rehearse, [*places, *trace, *options]))


async def test_a_trace_is_served_in_turns_by_either_engine_and_by_the_policy_in_force(files: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        gateway.policy |= {"up": 2, "down": 1}
        done = await run(gateway, files, "--json", "--repeats", "2")
        assert done.exit_code in {0, 1}, done.output
        outcomes = json.loads(done.stdout)
        assert [outcome["arm"] for outcome in outcomes] == ["triton alone", "vllm alone", "live"]
        assert outcomes[2]["switches"] > 0 == outcomes[0]["switches"]
        assert all(outcome["regret"]["regret"]["value"] >= 1 for outcome in outcomes[:2])
        assert outcomes[2]["moves"] == 0  # the gateway's count stands still
        asked = [body for body in gateway.bodies if body["max_tokens"] in {4, 5, 6}]
        assert len(asked) >= 2 * 3 * 60
        assert gateway.runs == {"rehearse"}  # of what is pinned; what is routed is a user's load
        assert gateway.policy["by"] == "configuration"

        again = await run(gateway, files, "--json", "--repeats", "2")
        assert json.loads(again.stdout) == outcomes
        first = json.loads((await run(gateway, files, "--json", "--repeats", "2", "--objective", "ttft")).stdout)
        assert all(a["regret"]["mean_s"] < 0.8 * b["regret"]["mean_s"] for a, b in zip(first, outcomes, strict=True))
        assert "Times are those of a first token" in (files / "run/rehearsal.html").read_text()
        assert len(gateway.bodies) < len(asked) + 20  # probes alone
    (served,) = (files / "run/traces").iterdir()
    assert read_trace(served) == read_trace(files / "rush.jsonl")
    page = (files / "run/rehearsal.html").read_text()
    assert page.count("<svg") == 2 + 2
    assert "requests that arrive each second" in page
    assert "triton alone, " in page
    assert "<title>the plan sends requests to vllm</title>" in page


async def test_a_trace_is_served_until_the_policy_is_known_to_be_worse_or_not(files: Path) -> None:
    """Everything goes to the slower engine."""
    async with FakeGateway(LOW, Speed(base_s=0.05, per_request_s=0.0), Faults(routes_to="vllm")) as gateway:
        done = await run(gateway, files, "--json", "--repeats", "5", "--max-loss", "0.05")
    assert done.exit_code == 1, done.output
    *alone, live = json.loads(done.stdout)
    assert (live["verdict"], live["repeats"]) == ("worse", len(list((files / "run").glob("*_live_*.json"))))
    assert 2 <= live["repeats"] < 5
    assert [outcome["verdict"] for outcome in alone] == [None, None]


async def test_what_is_not_decided_when_the_budget_is_spent_is_reported_and_no_failure(files: Path) -> None:
    """Everything goes to the better engine: neither worse nor, by any number of repeats, surely not."""
    async with FakeGateway(LOW, HIGH, Faults(routes_to="triton")) as gateway:
        done = await run(gateway, files, "--repeats", "6", "--budget", "0.1")
    assert done.exit_code == 0, done.output
    assert "not decided" in done.stdout
    assert len(list((files / "run").glob("*_live_*.json"))) == 2


async def test_turns_wait_for_their_answers_and_share_a_prefix_with_no_other_arm(files: Path) -> None:
    lines: list[dict[str, object]] = [{"trace": "turns"}]
    for chat in range(4):
        first = {"at": chat / 20, "prompt_tokens": 60, "tokens": 5, "id": chat, "prefix": [9, chat], "block": 20}
        lines += [first, {**first, "at": chat / 20 + 1e-3, "id": f"{chat}/2", "after": chat, "wait_s": 0.1}]
    (files / "rush.jsonl").write_text("\n".join(map(json.dumps, lines)))
    async with FakeGateway(LOW, HIGH) as gateway:
        done = await run(gateway, files, "--repeats", "1")
        assert done.exit_code in {0, 1}, done.output
        asked = [str(body["messages"][0]["content"]) for body in gateway.bodies if body["max_tokens"] == 5]  # type: ignore[index]  # the client's JSON
    arms = [asked[start : start + 8] for start in (0, 8, 16)]
    for prompts in arms:
        assert len({tuple(prompt.split()[:12]) for prompt in prompts}) == 1  # a block has 15 words or more
        assert len({tuple(prompt.split()[:25]) for prompt in prompts}) == 4
        assert len(set(prompts)) == 8
    assert len({tuple(prompts[0].split()[:12]) for prompts in arms}) == 3
    serving = json.loads(next((files / "run").glob("*triton-alone_0.json")).read_text())
    ends = [due + e2e for due, e2e in zip(serving["due_s"], serving["e2e_s"], strict=True)]
    order = [(chat / 20 + turn * 1e-3, chat, turn) for chat in range(4) for turn in range(2)]
    places = {key[1:]: place for place, key in enumerate(sorted(order))}
    for chat in range(4):
        assert serving["due_s"][places[chat, 1]] == pytest.approx(ends[places[chat, 0]] + 0.1, abs=1e-4)


async def test_policies_are_tried_and_the_one_before_is_back(files: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        done = await run(
            gateway, files, "--repeats", "1", "--policy", "threshold up=4 down=2", "--policy", "threshold up=90 down=80"
        )
        assert done.exit_code in {0, 1}, done.output
        assert "threshold up=90 down=80" in done.stdout
        assert (gateway.policy["up"], gateway.policy["by"]) == (48, "configuration")
        other = await run(gateway, files, "--policy", "threshold up=5 down=2")
        assert (other.exit_code, "holds a rehearsal by another plan" in other.output) == (2, True)


async def test_an_answer_that_is_not_the_work_ends_it_and_the_policy_before_is_back(files: Path) -> None:
    async with FakeGateway(LOW, HIGH, Faults(error_answer=30)) as gateway:
        done = await run(gateway, files, "--policy", "threshold up=4 down=2", "--policy", "threshold up=9 down=2")
        assert done.exit_code == 3
        assert "the engine is on fire" in done.output
        assert gateway.policy["by"] == "configuration"
        assert not list((files / "run").glob("*_0.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--trace", "nowhere"),
            "--trace nowhere: No such file or directory (known by name: ramp, step, bursts, day, ",
        ),
        (("--policy", "threshold up"), "'up' in 'threshold up': must be key=value"),
        (("--node", "/nowhere"), "--node: /nowhere"),
        (("--node", __file__), "--node: "),
        (("--out", "/proc/nowhere"), "--out: cannot write to /proc/nowhere"),
        (("--model", "other"), "serves no model other"),
    ],
)
async def test_a_bad_argument_is_named(files: Path, options: tuple[str, ...], message: str) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        done = await run(gateway, files, *options)
    assert done.exit_code == 2
    assert message in done.output


async def test_a_trace_by_name_needs_to_know_how_fast_the_engines_are(files: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        (files / "node.json").write_text(json.dumps({"low": {}, "high": {}}))
        done = await run(gateway, files, "--trace", "ramp")
    assert (done.exit_code, done.output) == (2, "Error: the node model's low.steps_ms: Field required\n")

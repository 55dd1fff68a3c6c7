"""`crossover bench` against an endpoint whose pace is known."""

import json
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from click.testing import CliRunner

from loadtest.bench_cli import bench
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
# Requests 50 ms apart meet every phase of its steps: the median TTFT is about 30 ms, of which a late timer is nothing.
EASY = Speed(base_s=0.06, per_request_s=0.0)
SHORT = ("--tokens", "8", "--prompt-words", "5")


async def run(gateway: FakeGateway, *options: str) -> tuple[int, str]:
    """In a thread: the command has an event loop of its own."""
    window = () if {"--requests", "--trace"} & {*options} else ("--window", "1")
    arguments = ["--url", gateway.url, *SHORT, *window, *options]
    done = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(bench, arguments))
    return done.exit_code, done.output


async def figures(gateway: FakeGateway, *options: str) -> dict[str, Any]:  # Any: JSON
    code, text = await run(gateway, *options, "--json")
    assert code == 0, text
    return dict(json.loads(text))


async def test_a_closed_loop_has_the_pace_and_the_level_of_the_endpoint() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--concurrency", "4", "--slo", "ttft=10")
        assert gateway.runs == set()  # not tagged: to the policy this is a user's load
    assert found["tokens_per_s"] == pytest.approx(4 / 0.02, rel=0.1)
    assert found["tpot_s"]["p50"] == pytest.approx(0.02, rel=0.1)
    assert found["in_flight"] == pytest.approx(4, rel=0.05)
    assert found["goodput"] == pytest.approx(found["requests_per_s"])


async def test_a_closed_loop_may_end_by_requests_that_its_window_held() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--concurrency", "4", "--requests", "14")
    answered = round(found["requests_per_s"] * found["window_s"])
    assert 14 <= answered <= 14 + 4
    assert found["in_flight"] == pytest.approx(4, rel=0.05)


@pytest.mark.alone  # a client that gets no CPU in time says so
async def test_a_traces_requests_have_their_own_arrivals_and_lengths(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    requests = [{"at": 7 + 0.1 * n, "prompt_tokens": 20 + 10 * n, "tokens": 3 + n} for n in range(6)]
    file.write_text("\n".join(map(json.dumps, requests)))
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--trace", str(file))
        measured = gateway.bodies[-6:]  # those before show how long prompts are
    assert [body["max_tokens"] for body in measured] == [3, 4, 5, 6, 7, 8]
    assert (found["requests"], found["doubts"]) == (6, [])
    assert found["e2e_s"]["p50"] == pytest.approx(5.5 * 0.02, rel=0.3)
    assert found["window_s"] == pytest.approx(0.5 + 8 * 0.02, rel=0.3)
    words = [len(str(body["messages"]).split()) for body in measured]
    assert words == sorted(words)
    assert words[-1] > words[0]


async def test_a_traces_turns_wait_for_their_answers(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    turn = {"at": 0.0, "prompt_tokens": 60, "tokens": 5, "prefix": [1], "block": 20}
    lines = [turn | {"id": 0}, turn | {"id": 1, "after": 0, "wait_s": 0.2}, turn | {"after": 1, "wait_s": 0.2}]
    file.write_text("\n".join(map(json.dumps, lines)))
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--trace", str(file))
        prompts = [str(body["messages"][0]["content"]) for body in gateway.bodies[-3:]]  # type: ignore[index]  # the client's JSON
    assert found["window_s"] == pytest.approx(2 * 0.2 + 3 * 5 * 0.02, rel=0.2)
    assert found["e2e_s"]["p50"] == pytest.approx(5 * 0.02, rel=0.3)
    assert len({tuple(prompt.split()[:12]) for prompt in prompts}) == 1  # a block has 15 words or more
    assert len(set(prompts)) == 3


async def test_a_known_shape_follows_from_a_node_model(tmp_path: Path) -> None:
    node = tmp_path / "node.json"
    engine = {"steps_ms": [[1, 20.0], [8, 20.0]], "max_sequences": 8}
    node.write_text(json.dumps({"node": {"low": engine, "high": engine}}))
    async with FakeGateway(STEADY, STEADY) as gateway:
        found = await figures(gateway, "--trace", "step length=8", "--node", str(node), "--seed", "1")
        assert 10 < found["requests"] <= len(gateway.bodies) - 2
        code, text = await run(gateway, "--trace", "step")
        assert (code, "--trace step: its rates and lengths follow from a node model" in text) == (2, True)


@pytest.mark.alone  # a client that gets no CPU in time says so
async def test_an_open_loop_sends_at_its_rate_and_reuses_connections() -> None:
    async with FakeGateway(EASY, EASY) as gateway:
        found = await figures(gateway, "--rate", "20", "--arrivals", "constant")
        assert len(gateway.prompts["triton"]) == len(set(gateway.prompts["triton"]))
    assert found["offered"] == pytest.approx(20, abs=1)
    assert found["tpot_s"]["p50"] == pytest.approx(0.06, rel=0.1)
    assert found["in_flight"] == pytest.approx(20 * 8 * 0.06, rel=0.35)  # Little's law
    assert found["doubts"] == []


async def test_a_table_is_printed_for_people() -> None:
    priced = ("--gpu-price", "3.6 EUR", "--gpu-count", "2")
    async with FakeGateway(STEADY, STEADY) as gateway:
        code, text = await run(gateway, "--concurrency", "2", "--pin", "vllm", "--slo", "ttft=10", *priced)
        assert gateway.prompts["triton"] == []
    assert code == 0, text
    shown = ("2 in flight", "TTFT", "within ttft 10 s", "million tokens per GPU-hour · ", " EUR per million tokens")
    assert [words for words in shown if words not in text] == []


async def test_an_answer_that_ends_early_is_refused_unless_any_length_will_do() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(short_answer=5)) as gateway:
        code, text = await run(gateway, "--concurrency", "2")
        assert code == 3
        assert "UNEQUAL WORK: the endpoint returned" in text
    async with FakeGateway(STEADY, STEADY, Faults(short_answer=5)) as gateway:
        code, text = await run(gateway, "--concurrency", "2", "--any-length")
        assert code == 0, text
        assert all("ignore_eos" not in body for body in gateway.bodies)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "one of --concurrency, --rate and --trace"),
        (("--concurrency", "2", "--rate", "3"), "one of --concurrency, --rate and --trace"),
        (("--rate", "3", "--requests", "9"), "--requests: of a closed loop"),
        (("--concurrency", "2", "--window", "0"), "a window has a length"),
        (("--concurrency", "2", "--slo", "itl=1"), "limits are ttft, tpot and e2e"),
        (("--concurrency", "2", "--gpu-price", "2"), "--gpu-price needs the number of GPUs"),
        (("--concurrency", "2", "--gpu-price", "dear"), "dear: an amount above 0"),
        (("--concurrency", "1", "--url", "http://127.0.0.1:9"), "Error: cannot connect to http://127.0.0.1:9"),
    ],
)
def test_bad_arguments_and_a_missing_endpoint_are_one_line(options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(bench, options)
    assert done.exit_code == 2
    assert message in done.output

"""The null backend as the official client and our own read it, and `crossover bench --null`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest
from click.testing import CliRunner

from loadtest.bench_cli import bench
from loadtest.client.connection import clock
from loadtest.client.recording import Recording
from loadtest.client.target import Target
from loadtest.mock_engine.engine import MODEL, MockEngine, Pace
from loadtest.results.percentiles import Percentiles
from loadtest.workload.ceiling import TOKENS, Ceiling, CeilingMeter, Load, StampedAnswer, null_backend

COUNTED = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.fixture(scope="module", autouse=True)
def started(cache: Path) -> Iterator[MockEngine]:  # of the cache: that there is a compiler
    with null_backend() as engine:
        yield engine


@pytest.fixture
def engine(started: MockEngine) -> MockEngine:
    started.set(Pace(batch=5))
    return started


# The null backend


@pytest.mark.parametrize("counted", [False, True])
async def test_the_official_client_gets_exactly_the_tokens_asked_for(engine: MockEngine, counted: bool) -> None:
    async with openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        options = COUNTED["stream_options"] if counted else {"include_usage": True}
        stream = await client.chat.completions.create(
            model=MODEL, messages=[], max_tokens=12, stream=True, extra_body={"stream_options": options}
        )
        *answer, usage = [chunk async for chunk in stream]
    texts = [text for chunk in answer if (text := chunk.choices[0].delta.content)]
    assert [int(text[16:], 16) for text in texts] == list(range(12))  # the place each stamp says it has
    assert answer[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in answer] == [None] * 13 + ["length"]
    assert usage.usage is not None
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens, usage.usage.total_tokens) == (48, 12, 60)
    counts = [chunk.usage.completion_tokens if chunk.usage else None for chunk in answer]
    assert counts == ([0, *range(1, 13), 12] if counted else [None] * 14)


async def test_every_token_carries_its_count_and_when_it_was_sent_also_where_several_leave_together(
    engine: MockEngine,
) -> None:
    """An answer's length need not be a multiple of a batch, and the connection goes on with the next answer."""
    target = Target("127.0.0.1", engine.port)
    connection = await target.connect()
    for tokens in (1, 4, 5, 6, 3000):
        answer = StampedAnswer()
        body = json.dumps(COUNTED | {"max_tokens": tokens}, separators=(",", ":")).encode()
        await connection.exchange(target.request("POST", "/v1/chat/completions", body), answer)
        assert (answer.is_counted, answer.counts, answer.is_complete) == (True, list(range(1, tokens + 1)), True)
        late = list(answer.lateness_s(Recording(0.0, clock(), (answer,), ())))
        assert len(late) == tokens
        assert all(0 < lateness < clock() - answer.started_at for lateness in late)
    connection.abort()


# What is measured against it


async def test_a_paced_load_comes_at_its_pace_and_flat_out_is_faster(engine: MockEngine) -> None:
    meter = CeilingMeter(engine, streams=4, window_s=0.3)
    paced, flat_out = await meter.load(2000.0, groups=4), await meter.load(None)
    assert paced.events_per_s < 1.5 * 2000
    assert flat_out.events_per_s > 2 * paced.events_per_s
    assert paced.lateness_s is not None
    assert flat_out.lateness_s is None
    assert paced.lateness_s.n == pytest.approx(2 * 4 * TOKENS, rel=0.3)  # two whole answers of each stream
    assert flat_out.null_events_per_cpu_s > 1.5 * flat_out.events_per_cpu_s  # else the ceiling would be the backend's


GOOD = Load(None, 90_000.0, 0.95, 95_000.0, 400_000.0, 0.001, None)
PACED = replace(GOOD, asked_per_s=20_000.0, events_per_s=19_990.0, lateness_s=Percentiles(9, 1e-5))
CEILING = Ceiling(64, 3.0, GOOD, PACED, PACED)


@pytest.mark.parametrize(
    ("doubtful", "word"),
    [
        (replace(CEILING, flat_out=replace(GOOD, client_cpu=0.3)), "30% of a core"),
        (replace(CEILING, flat_out=replace(GOOD, null_events_per_cpu_s=100_000.0)), "may be the backend's"),
        (replace(CEILING, in_step=replace(PACED, events_per_s=15_000.0)), "Only 15000 events/s came of the 20000"),
    ],
)
def test_a_doubtful_ceiling_says_why(doubtful: Ceiling, word: str) -> None:
    assert CEILING.doubts == ()
    [doubt] = doubtful.doubts
    assert word in doubt


# The command


def test_null_measures_this_client_and_prints_json() -> None:
    done = CliRunner().invoke(bench, ["--null", "--concurrency", "8", "--window", "0.3", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.output)
    assert figures["streams"] == 8
    flat_out, spread, in_step = (figures[name] for name in ("flat_out", "spread", "in_step"))
    assert flat_out["asked_per_s"] is None
    assert flat_out["null_events_per_cpu_s"] > flat_out["events_per_cpu_s"] > 0
    assert spread["asked_per_s"] == in_step["asked_per_s"] == 20_000
    assert 0 < spread["lateness_s"]["p50"] <= spread["lateness_s"]["p99"]
    assert isinstance(figures["doubts"], list)


def test_null_has_a_table_as_well() -> None:
    done = CliRunner().invoke(bench, ["--null", "--concurrency", "4", "--window", "0.2"])
    assert all(words in done.output for words in ("4 streams", "events/s", "flat out", "spread", "in step"))


@pytest.mark.parametrize("other", [("--url", "http://h"), ("--rate", "3"), ("--tokens", "8")])
def test_null_goes_with_no_option_about_an_endpoint(other: tuple[str, str]) -> None:
    done = CliRunner().invoke(bench, ["--null", *other])
    assert done.exit_code == 2
    assert "--null has a backend and a load of its own" in done.output

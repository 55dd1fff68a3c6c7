"""The paced mock engine over real sockets: whose clock a request has, and what its events are."""

import itertools
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import orjson
import pytest

from loadtest.agreement.engine import MODEL, PacedEngine
from loadtest.agreement.workload import Pace
from loadtest.bench import native
from loadtest.bench.errors import BenchError
from loadtest.bench.http import fetch, free_ports

PACE = Pace(ttft_s=0.2, interval_s=0.02)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        native.find_compiler()
    except BenchError as exc:
        pytest.skip(str(exc))
    return native.build("paced", tmp_path_factory.mktemp("bench"))


@pytest.fixture
def engine(program: Path, tmp_path: Path) -> Iterator[PacedEngine]:
    [port] = free_ports(1)
    with PacedEngine(program, port, tmp_path / "log", PACE) as engine:
        yield engine


@dataclass(slots=True)
class Heard:
    """Events as they came; `times` of those with text."""

    asked_at: float
    events: list[dict[str, Any]] = field(default_factory=list)  # Any: JSON
    times: list[float] = field(default_factory=list)
    is_done: bool = False

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.asked_at

    @property
    def tpot_s(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def ask(engine: PacedEngine, tokens: int, **fields: Any) -> Heard:  # Any: JSON
    body = orjson.dumps({"stream": True, "max_tokens": tokens, "messages": [], **fields})
    port = int(engine.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as stream:
        heard = Heard(time.monotonic())
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        for line in stream:
            if line == b"data: [DONE]\n":
                heard.is_done = True
                return heard
            if line.startswith(b"data: "):
                heard.events.append(orjson.loads(line[6:]))
                if any(choice["delta"].get("content") for choice in heard.events[-1]["choices"]):
                    heard.times.append(time.monotonic())
    return heard


def ask_at_once(engine: PacedEngine, streams: int, tokens: int) -> Sequence[Heard]:
    with ThreadPoolExecutor(streams) as pool:
        return list(pool.map(lambda _: ask(engine, tokens), range(streams)))


@pytest.mark.alone
def test_the_first_token_and_the_others_keep_the_two_paces_that_were_set(engine: PacedEngine) -> None:
    heard = ask(engine, 21)
    assert heard.ttft_s / heard.tpot_s == pytest.approx(PACE.ttft_s / PACE.interval_s, rel=0.3)


@pytest.mark.alone
def test_an_answer_twice_as_long_takes_twice_as_long_to_decode(engine: PacedEngine) -> None:
    short, long = ask(engine, 21), ask(engine, 41)
    assert (long.times[-1] - long.times[0]) / (short.times[-1] - short.times[0]) == pytest.approx(2, rel=0.2)


@pytest.mark.alone
def test_others_slow_no_request_down(engine: PacedEngine) -> None:
    alone = ask(engine, 21)
    for heard in ask_at_once(engine, 32, 21):
        assert heard.times[-1] - heard.asked_at < 1.5 * (alone.times[-1] - alone.asked_at)


@pytest.mark.alone
def test_each_request_has_a_clock_of_its_own(engine: PacedEngine) -> None:
    """Those that begin apart stay as far apart, to the last token: they do not step together."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, engine, 21)
        time.sleep(2.5 * PACE.interval_s)
        second = pool.submit(ask, engine, 21)
        earlier, later = first.result(), second.result()
    apart = later.asked_at - earlier.asked_at
    assert (later.times[0] - earlier.times[0]) / apart == pytest.approx(1, rel=0.25)
    assert (later.times[-1] - earlier.times[-1]) / apart == pytest.approx(1, rel=0.25)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_events_are_vllms(engine: PacedEngine, field: str) -> None:
    heard = ask(engine, 99, **{"max_tokens": 99, field: 5} if field == "max_tokens" else {field: 5})
    deltas = [choice["delta"] for event in heard.events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for event in heard.events for choice in event["choices"]]
    assert heard.is_done
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta["content"] for delta in deltas[1:]] == 5 * [" token"]
    assert reasons == [*5 * [None], "length"]
    assert not any("usage" in event for event in heard.events)


def test_usage_comes_last_where_it_is_asked_for(engine: PacedEngine) -> None:
    heard = ask(engine, 5, stream_options={"include_usage": True})
    assert [event.get("usage") for event in heard.events[:-1]] == 6 * [None]
    assert heard.events[-1]["choices"] == []
    assert heard.events[-1]["usage"] == {"prompt_tokens": 64, "total_tokens": 69, "completion_tokens": 5}


def test_usage_counts_tokens_in_every_event_where_that_is_asked_for(engine: PacedEngine) -> None:
    heard = ask(engine, 4, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert [event["usage"]["completion_tokens"] for event in heard.events] == [0, 1, 2, 3, 4, 4]


def test_requests_follow_one_another_on_a_connection(engine: PacedEngine) -> None:
    port = int(engine.url.rpartition(":")[2])
    body = b'{"stream": true, "max_tokens": 2}'
    request = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as stream:
        connection.sendall(request + request)
        ends = (line for line in stream if line == b"data: [DONE]\n")
        assert len(list(itertools.islice(ends, 2))) == 2


def test_it_tells_its_model_and_what_it_sent(engine: PacedEngine) -> None:
    assert orjson.loads(fetch(f"{engine.url}/v1/models"))["data"][0]["id"] == MODEL
    ask(engine, 5)
    state = orjson.loads(fetch(f"{engine.url}/paced/state"))
    assert (state["requests"], state["tokens"], state["unfinished"]) == (1, 5, 0)
    assert 0 <= state["mean_late_us"] <= state["max_late_us"]
    assert orjson.loads(fetch(f"{engine.url}/paced/state"))["tokens"] == 0  # counted anew each time it is asked


@pytest.mark.parametrize("body", [b'{"max_tokens": 5}', b'{"stream": true}', b'{"stream": true, "max_tokens": 0}'])
def test_what_it_cannot_answer_is_refused(engine: PacedEngine, body: bytes) -> None:
    with pytest.raises(HTTPError, match="400") as refused:
        fetch(f"{engine.url}/v1/chat/completions", body)
    refused.value.close()

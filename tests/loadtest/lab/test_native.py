"""The mock engine and the load client, built and talking to each other over real sockets."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.lab.bench.load_client import Destination, run_client
from loadtest.lab.figures.measurement import Measurement
from loadtest.lab.figures.scenarios import Load
from loadtest.mock_engine.build import MOCK, build, find_compiler
from loadtest.mock_engine.engine import IdSpace, MockEngine, Pace, mock_engine
from loadtest.mock_engine.http import fetch
from loadtest.mock_engine.process import CannotMeasure, Child, Launch, read_cpu_s, wait_until_ready

LOAD = Load(8, tokens=40, warm_s=0.1, window_s=0.5, drain_s=5)
QUICK = Pace(interval_us=2000)


@pytest.fixture
def mock(cache: Path, tmp_path: Path) -> Iterator[MockEngine]:
    with mock_engine(build(MOCK, cache), tmp_path, IdSpace(300, 200_000)) as engine:
        yield engine


def measure(client: Path, mock: MockEngine, load: Load = LOAD) -> Measurement:
    destination = Destination(mock.port, pids=[mock.child.pid, os.getpid()], mock_pids=[mock.child.pid], acks=mock.acks)
    return run_client(client, destination, load)


@pytest.mark.parametrize(
    "pace", [QUICK, Pace(), Pace(lockstep=True)], ids=["paced", "as fast as they go", "in lockstep"]
)
def test_every_token_that_is_sent_arrives_in_its_place(client: Path, mock: MockEngine, pace: Pace) -> None:
    mock.set(pace)
    measured = measure(client, mock)
    assert measured.complaint is None
    assert measured.streams_ended >= 8
    assert measured.all_tokens == 40 * measured.streams_ended == mock.state()["tokens"]
    assert measured.delay_us.count == measured.tokens
    assert 0 < measured.delay_us.p50 <= measured.delay_us.p99 <= measured.delay_us.max


@pytest.mark.parametrize(
    ("fault", "field"),
    [("drop", "lost"), ("swap", "reordered"), ("repeat", "reordered"), ("foreign", "foreign"), ("cut", "unfinished")],
)
def test_what_goes_wrong_with_tokens_is_noticed(client: Path, mock: MockEngine, fault: str, field: str) -> None:
    mock.set(replace(QUICK, fault=fault, every=10))
    measured = measure(client, mock)
    assert getattr(measured, field) > 0
    assert measured.complaint


def test_whole_answers_are_asked_for_again_and_again_and_cpu_is_that_of_the_processes_named(
    client: Path, mock: MockEngine
) -> None:
    measured = measure(client, mock, Load(16, is_whole=True, warm_s=0.1, window_s=1))
    assert (measured.complaint, measured.tokens) == (None, 0)
    assert measured.requests > 16
    assert measured.latency_us.count == measured.requests
    assert measured.cpu_s == pytest.approx(measured.mock_cpu_s, rel=0.05)  # the same process, named as both
    assert measured.window_s >= measured.cpu_s > 0
    assert measured.peak_rss_kib > 1000


def test_cpu_is_that_of_all_threads_ended_ones_too(tmp_path: Path) -> None:
    burn = "import threading, time\ndef f():\n while time.thread_time() < 0.3: pass\n"
    code = burn + "t = threading.Thread(target=f)\nt.start()\nt.join()\nprint('done')\ntime.sleep(60)"
    with Child(Launch([sys.executable, "-c", code]), tmp_path / "log") as child:
        while "done" not in child.read_log():
            time.sleep(0.02)
        assert 0.3 <= child.cpu_s() < 5
    assert read_cpu_s(child.pid) == 0


def test_lag_is_looked_at_beside_the_load(client: Path, mock: MockEngine) -> None:
    mock.set(QUICK)
    measured = measure(client, mock, replace(LOAD, probe_ms=10))
    assert 25 <= measured.lag_us.count <= 51  # every 10 ms for half a second, on a machine that may be busy


def test_an_intruder_comes_again_and_again_and_is_another_each_time(
    client: Path, mock: MockEngine, tmp_path: Path
) -> None:
    body = tmp_path / "intruder.json"
    body.write_text('{"messages": [{"content": "########' + 600_000 * "x" + '"}], "max_tokens": 2, "stream": true}')
    mock.set(QUICK)
    destination = Destination(mock.port, intruder=body)
    measured = run_client(client, destination, replace(LOAD, intruder_ms=100, window_s=1))
    assert measured.complaint is None
    assert measured.intrusions >= 3


def test_a_refusal_is_an_error_with_the_servers_words(client: Path, mock: MockEngine) -> None:
    mock.child.end()
    measured = measure(client, mock)
    assert measured.errors > 0
    assert "connect" in measured.first_error


def test_a_stream_that_its_client_closes_ends(client: Path, mock: MockEngine) -> None:
    mock.set(QUICK)
    measure(client, mock, Load(4, tokens=100_000, warm_s=0.1, window_s=0.2))
    assert mock.drain() == 0


def test_a_stream_that_nobody_closes_is_cut_off(mock: MockEngine) -> None:
    mock.set(QUICK)
    with socket.create_connection(("127.0.0.1", mock.port)) as left_open:
        body = b'{"max_tokens":100000,"stream":true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        left_open.sendall(head + body)
        while not mock.state()["running"]:
            time.sleep(0.01)
        assert mock.drain(limit_s=0.1) == 1
        assert mock.state()["running"] == 0


def test_the_id_wire_is_there_and_wants_ids(mock: MockEngine) -> None:
    body = b'{"token_ids":[1,2],"sampling_params":{"max_tokens":9,"seed":5},"stream":true}'
    events = fetch(f"{mock.url}/inference/v1/generate", body).decode().split("\n\n")
    assert len(events) == 9 + 2  # [DONE], and what follows it
    assert '"token_ids":[200655]' in events[7]  # place 7 of stream 5: 131 * 5
    with pytest.raises(OSError, match="400"):
        fetch(f"{mock.url}/inference/v1/generate", b"{}")


def test_a_program_is_built_once(cache: Path) -> None:
    first = build(MOCK, cache)
    built_at = first.stat().st_mtime_ns
    assert build(MOCK, cache) == first
    assert first.stat().st_mtime_ns == built_at


def test_without_a_compiler_the_message_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="apt-get install gcc"):
        find_compiler(str(tmp_path))


def test_a_program_that_ends_instead_of_answering_is_reported_with_its_words(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ConnectionRefusedError

    code = "import sys; sys.exit('no such option')"
    with (
        Child(Launch([sys.executable, "-c", code]), tmp_path / "log") as child,
        pytest.raises(CannotMeasure, match="it ended with exit code 1: no such option"),
    ):
        wait_until_ready("it", child, refuse, 20.0)

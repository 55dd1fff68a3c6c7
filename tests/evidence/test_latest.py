"""Evidence as several processes see it: what one publishes the others read, whole or not at all."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from gateway.evidence import Change, Evidence, LatestEvidence, Place
from gateway.evidence.values import UNKNOWN
from gateway.shared import Seat
from tests.fakes.seats import SIZE

TRITON, VLLM, OTHER = PLACES = (Place("m", "triton"), Place("m", "vllm"), Place("other", "vllm"))
TOLD = Evidence({"engine": "vllm", "version": "0.24.0", "max_model_len": 8192}, in_flight=12, drift=-1, steady_drift=0)

ROOT = Path(__file__).parents[2]
ENDLESS_WRITER = """
import sys
from gateway.evidence import LatestEvidence, Evidence, Place
from gateway.shared import Seat

places = Place("m", "triton"), Place("m", "vllm"), Place("other", "vllm")
latest = LatestEvidence(places, Seat.take(1, 0, int(sys.argv[1])))
while True:
    latest.publish(places[1], Evidence({"engine": "a" * 256}))
    latest.publish(places[1], Evidence({"engine": "b"}, 1, 2, 3))
"""

Attach: TypeAlias = Callable[[int], LatestEvidence]


@pytest.fixture
def attach() -> Attach:
    """A latest as the worker of that index opens it."""
    found = Seat.found(SIZE, workers=2)
    assert found.memory.fd is not None
    fd = found.memory.fd
    return lambda index: LatestEvidence(PLACES, Seat.take(2, index, fd))


def test_what_one_worker_publishes_every_worker_reads(attach: Attach) -> None:
    writer, reader = attach(0), attach(1)
    assert reader.read(VLLM) == reader.read(Place("m", "elsewhere")) == UNKNOWN
    writer.publish(VLLM, TOLD)
    assert (reader.read(VLLM), writer.read(VLLM), reader.read(OTHER)) == (TOLD, TOLD, UNKNOWN)
    longest = Evidence({f"field{number}": "\x01" * 256 for number in range(12)})
    for evidence in (longest, Evidence(), TOLD):
        writer.publish(VLLM, evidence)
        assert reader.read(VLLM) == evidence


def test_a_writer_that_is_killed_leaves_whole_evidence() -> None:
    long, short = Evidence({"engine": "a" * 256}), Evidence({"engine": "b"}, 1, 2, 3)
    for _ in range(2):
        seat = Seat.found(SIZE, workers=1)
        reader = LatestEvidence(PLACES, seat)
        assert seat.memory.fd is not None
        command = [sys.executable, "-c", ENDLESS_WRITER, str(seat.memory.fd)]
        with subprocess.Popen(command, pass_fds=[seat.memory.fd], cwd=ROOT) as writer:
            while reader.read(VLLM) == UNKNOWN:
                assert writer.poll() is None
            writer.kill()
        assert reader.read(VLLM) in (long, short)


def test_a_model_is_compared_with_its_own_engines_only() -> None:
    latest = LatestEvidence(PLACES, Seat.alone())
    latest.publish(OTHER, Evidence({"version": "9"}))
    fingerprint = {"triton": {"version": "1"}, "vllm": {"version": "1"}}
    assert latest.find_changes("m", fingerprint) == ()
    latest.publish(VLLM, Evidence({"version": "2"}))
    latest.publish(TRITON, Evidence({"version": "1"}))
    assert latest.identities("m") == {"triton": {"version": "1"}, "vllm": {"version": "2"}}
    assert latest.find_changes("m", fingerprint) == (Change("vllm", "version", "1", "2"),)
    assert latest.find_changes("m", None) == ()

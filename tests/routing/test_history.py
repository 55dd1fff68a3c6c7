"""Policies as a text, within the room there is for it."""

from dataclasses import replace

import pytest

from gateway.routing.history import MAX_RECORDS, decode_history, encode_history
from gateway.routing.policies import READERS, Share, Threshold
from gateway.routing.states import PolicyRecord

POLICY = Threshold(low="triton", high="vllm", up=4, down=2, dwell_s=0.5)
RECORD = PolicyRecord(1, POLICY, 'alice "the" 管理', 1.5, "run-7", {"vllm": {"engine": "vllm", "gpus": 2}})
ROOM = 1 << 20


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        PolicyRecord(1, None, "configuration", 0.1),
        PolicyRecord(2, Share("triton", "vllm", 0.05), "alice", 0.1),
    ],
)
def test_what_is_written_reads_the_same(record: PolicyRecord) -> None:
    assert decode_history(encode_history([record], ROOM), READERS) == (record,)


def test_the_newest_hundred_are_kept() -> None:
    records = [replace(RECORD, version=version) for version in range(MAX_RECORDS + 30)]
    assert decode_history(encode_history(records, ROOM), READERS) == tuple(records[-MAX_RECORDS:])


@pytest.mark.parametrize("room", [10, 500, 5000])
def test_what_does_not_fit_goes_oldest_first_and_the_newest_stays(room: int) -> None:
    records = [replace(RECORD, version=version) for version in range(50)]
    text = encode_history(records, room)
    kept = decode_history(text, READERS)
    assert kept == tuple(records[-len(kept) :])
    assert len(text) <= room or len(kept) == 1
    assert len(encode_history(records[-len(kept) - 1 :], ROOM)) > room

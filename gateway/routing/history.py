"""A model's policies as a text that all workers share: the last hundred, who set each and when."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from gateway.routing.policies import POLICIES
from gateway.routing.states import PolicyRecord

MAX_RECORDS = 100


def encode_history(records: Sequence[PolicyRecord], room: int) -> bytes:
    """The newest MAX_RECORDS, or as many of them as fit into `room` bytes; the newest of all is always there."""
    texts = [_encode_record(record) for record in records[-MAX_RECORDS:]]
    while len(texts) > 1 and sum(map(len, texts)) + len(texts) + 1 > room:
        del texts[0]
    return b"[" + b",".join(texts) + b"]"


def decode_history(text: bytes) -> tuple[PolicyRecord, ...]:
    return tuple(map(_decode_record, orjson.loads(text)))


def _encode_record(record: PolicyRecord) -> bytes:
    return orjson.dumps([record.policy and record.policy.kind, asdict(record)])


def _decode_record(entry: tuple[str | None, dict[str, Any]]) -> PolicyRecord:  # Any: decoded JSON, our own
    kind, fields = entry
    policy = fields.pop("policy")
    return PolicyRecord(policy=POLICIES[kind](**policy) if kind else None, **fields)

"""A model's policies as a text that all workers share: the last hundred, who set each and when."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import orjson

from gateway.core import Policy
from gateway.routing.states import PolicyRecord

MAX_RECORDS = 100

Kinds: TypeAlias = Mapping[str, Callable[[object], Policy]]  # of policies: what makes one of its keys


def encode_history(records: Sequence[PolicyRecord], room: float = math.inf) -> bytes:
    """Returns the newest MAX_RECORDS, or as many as fit into `room` bytes; the newest of all is always there."""
    texts = [_encode_record(record) for record in records[-MAX_RECORDS:]]
    while len(texts) > 1 and sum(map(len, texts)) + len(texts) + 1 > room:
        del texts[0]
    return b"[" + b",".join(texts) + b"]"


def decode_history(text: bytes, kinds: Kinds) -> tuple[PolicyRecord, ...]:
    return tuple(_decode_record(kind, fields, kinds) for kind, fields in orjson.loads(text))


def _encode_record(record: PolicyRecord) -> bytes:
    return orjson.dumps([record.policy and record.policy.kind, asdict(record)])


def _decode_record(kind: str | None, fields: dict[str, Any], kinds: Kinds) -> PolicyRecord:  # Any: JSON, our own
    policy = fields.pop("policy")
    return PolicyRecord(policy=kinds[kind](policy) if kind else None, **fields)

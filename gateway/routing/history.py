"""A model's policies as the text that all workers share: the last hundred, who set each and when."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from gateway.routing.states import PolicyRecord
from gateway.settings import PolicySettings, ShareSettings, ThresholdSettings

LENGTH = 100
KINDS: Mapping[str, type[PolicySettings]] = {kind.kind: kind for kind in (ThresholdSettings, ShareSettings)}


def encode_history(records: Sequence[PolicyRecord], room: int) -> bytes:
    """The newest hundred, or as many of them as fit into `room` bytes; the newest of all is never left out."""
    texts = [_encode_record(record) for record in records[-LENGTH:]]
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
    return PolicyRecord(policy=KINDS[kind](**policy) if kind else None, **fields)

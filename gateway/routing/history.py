"""A model's policies as the text that all workers share: the last hundred, who set each and when."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from gateway.routing.states import PolicyRecord
from gateway.settings import ThresholdSettings

LENGTH = 100


def encode_history(records: Sequence[PolicyRecord], room: int) -> bytes:
    """The newest hundred, or as many of them as fit into `room` bytes; the newest of all is never left out."""
    texts = [orjson.dumps(asdict(record)) for record in records[-LENGTH:]]
    while len(texts) > 1 and sum(map(len, texts)) + len(texts) + 1 > room:
        del texts[0]
    return b"[" + b",".join(texts) + b"]"


def decode_history(text: bytes) -> tuple[PolicyRecord, ...]:
    return tuple(map(_decode_record, orjson.loads(text)))


def _decode_record(fields: dict[str, Any]) -> PolicyRecord:  # Any: decoded JSON, our own
    policy = fields.pop("policy")
    return PolicyRecord(policy=policy and ThresholdSettings(**policy), **fields)

"""A model's policies as the text that all workers share: the last hundred, who set each and when."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson

from gateway.routing.states import PolicyRecord
from gateway.settings import ThresholdSettings

LENGTH = 100


def encode_history(records: Sequence[PolicyRecord]) -> bytes:
    return orjson.dumps([asdict(record) for record in records[-LENGTH:]])


def decode_history(text: bytes) -> tuple[PolicyRecord, ...]:
    return tuple(map(_decode_record, orjson.loads(text)))


def _decode_record(fields: dict[str, Any]) -> PolicyRecord:  # Any: decoded JSON, our own
    policy = fields.pop("policy")
    return PolicyRecord(policy=policy and ThresholdSettings(**policy), **fields)

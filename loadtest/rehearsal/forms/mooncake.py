"""Mooncake's jsonl: lengths, times in milliseconds, and an id for each block of 512 tokens of a prompt.

A block's id stands for all of the prompt up to its end, so that requests whose ids begin alike share that much.
"""

import io
import json

from loadtest.rehearsal.forms.source import Completion, Source, on_line, read_count, sort
from loadtest.rehearsal.forms.tables import EMPTY
from loadtest.rehearsal.traces import TraceRequest

BLOCK = 512


def read_mooncake(file: io.TextIOBase, _completion: Completion) -> Source:
    """Reads one object a line. Raises ValueError with the line."""
    requests, dropped = list[TraceRequest](), 0
    for number, line in enumerate(file, 1):
        with on_line(number):
            request = _read_request(json.loads(line))
        if request.prompt_tokens and request.tokens:
            requests.append(request)
        else:
            dropped += 1
    return Source(sort(requests), {EMPTY: dropped})


def _read_request(entry: object) -> TraceRequest:
    if not isinstance(entry, dict):
        raise TypeError("must be a JSON object")
    at_ms, ids = entry["timestamp"], entry["hash_ids"]
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms < 1e14:
        raise ValueError("timestamp must be a number of milliseconds, 0 or more")
    prompt_tokens, tokens = (read_count(entry[name], name) for name in ("input_length", "output_length"))
    if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise ValueError("hash_ids must be a list of whole numbers")
    if len(ids) != -(-prompt_tokens // BLOCK):
        raise ValueError(f"{len(ids)} hash_ids for {prompt_tokens} tokens; there is one for each {BLOCK}")
    return TraceRequest(at_ms / 1000, prompt_tokens, tokens, prefix=tuple(ids), block=BLOCK)

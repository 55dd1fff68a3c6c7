"""How much a JSON text holds, counted before any of it is made: a parser cannot be interrupted, on whichever thread.

Bytes in, a verdict out. Knows no field, and does not say whether the text is JSON.
"""

import re
from collections.abc import Iterator

UNCHECKED_BYTES = 16 * 1024  # shorter ones cannot hold enough to matter
PIECE_BYTES = 16 * 1024  # of a scan, which lets other threads run in between: 5 ms at most each
# Possessive: a string without an end is looked at once. Group 1 is empty where the piece ends before the string.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
CUT_STRING = b"\0"


def is_bulky(raw: bytes, max_parts: int, max_commas: int) -> bool:
    """Whether JSON holds more strings, arrays and objects, or more commas, than these; takes 1 ms for a long text."""
    if len(raw) <= UNCHECKED_BYTES:
        return False
    parts = raw.count(b"[") + raw.count(b"{") + raw.count(b'"') // 2
    if parts <= max_parts and raw.count(b",") <= max_commas:
        return False
    parts = commas = 0  # without those that stand inside of strings
    for outside in _outside_strings(raw):
        parts += outside.count(b"[") + outside.count(b"{") + outside.count(b'"')
        commas += outside.count(b",")
        if parts > max_parts or commas > max_commas:
            return True
    return False


def _outside_strings(raw: bytes) -> Iterator[bytes]:
    """JSON piece by piece; of each string its end alone, as one quotation mark."""
    start, is_inside = 0, False
    while start < len(raw):
        piece = raw[start : start + PIECE_BYTES]
        start += len(piece)
        if start < len(raw) and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece, start = piece[:-1], start - 1  # an escape is not cut in two
        outside = STRING.sub(rb"\0\1", b'"' + piece if is_inside else piece)
        is_inside = outside.endswith(CUT_STRING)
        yield outside

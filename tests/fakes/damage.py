"""Bytes in, the same bytes damaged out: by a generator that a test seeds."""

import random
from collections.abc import Callable


def flip(draw: random.Random, wire: bytes) -> bytes:
    damaged = bytearray(wire)
    for _ in range(draw.choice((1, 1, 1, 5, 100))):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged)


def cut_out(draw: random.Random, wire: bytes) -> bytes:
    begin_at = draw.randrange(len(wire))
    return wire[:begin_at] + wire[begin_at + draw.randrange(1, 300) :]


def put_in(draw: random.Random, wire: bytes) -> bytes:
    at = draw.randrange(len(wire))
    return wire[:at] + draw.randbytes(draw.randrange(1, 300)) + wire[at:]


def repeat(draw: random.Random, wire: bytes) -> bytes:
    at = draw.randrange(len(wire))
    end = at + draw.randrange(1, 300)
    return wire[:end] + wire[at:]


def stop(draw: random.Random, wire: bytes) -> bytes:
    return wire[: draw.randrange(len(wire))]


def as_it_was(draw: random.Random, wire: bytes) -> bytes:
    return wire


DAMAGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flip, flip, cut_out, put_in, repeat, stop, as_it_was)

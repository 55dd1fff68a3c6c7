"""Traces in files: one JSON object a line, plain or gzipped, with a header where they were imported.

In: a path. Out: requests in order of arrival, and the header. Damage is a ValueError with the line and the reason.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from loadtest.rehearsal.traces import MAX_TOKENS, TraceRequest

MAX_REQUESTS = 1_000_000
MAX_BLOCKS = 100_000
MAX_ID = 1 << 63
HEADER = "trace"  # the key that a first line has which is no request

Json: TypeAlias = Mapping[str, object]
Key: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class _Line:
    """A request as it stands in a file. `key` is its id there, `after` that of the request it waits for."""

    number: int
    request: TraceRequest
    key: Key | None
    after: Key | None


def read_trace(path: Path) -> tuple[TraceRequest, ...]:
    """Reads requests in any order. A trace begins with its first request, as one that a gateway has written does.

    docs/calibration.md describes the keys. Raises OSError, and ValueError with the line and the reason.
    """
    lines = sorted(_read_lines(path), key=lambda line: line.request.at)
    if not lines:
        raise ValueError(f"{path}: holds no request")
    start, places = lines[0].request.at, _find_places(path, lines)
    return tuple(
        replace(line.request, at=round(line.request.at - start, 6), after=_find_place(path, line, place, places))
        for place, line in enumerate(lines)
    )


def read_header(path: Path) -> Json:
    """Returns the header of a file that `read_trace` can read; empty where it has none."""
    with _open(path) as file:
        first = json.loads(next(iter(file)))
    return first if HEADER in first else {}


def _open(path: Path) -> gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both yield lines of bytes


def _read_lines(path: Path) -> Iterator[_Line]:
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                entry = json.loads(line)
                if not (number == 1 and isinstance(entry, dict) and HEADER in entry):
                    yield _read_line(number, entry)
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ValueError(f"{path}, line {number}: {type(exc).__name__} {exc}") from exc
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise ValueError(f"{path}, line {number + 1}: {exc}") from exc


def _read_line(number: int, entry: Json) -> _Line:
    if number > MAX_REQUESTS:
        raise ValueError(f"at most {MAX_REQUESTS} requests")
    at, wait_s, only = entry["at"], entry.get("wait_s", 0.0), entry.get("only", "")
    if not _is_seconds(at, 1e11):
        raise ValueError("at must be a number of seconds, 0 or more")
    if not _is_seconds(wait_s, 1e9):
        raise ValueError("wait_s must be a number of seconds, 0 or more")
    if only not in ("", "low", "high"):
        raise ValueError("only must be low or high")
    lengths = (entry["prompt_tokens"], entry["tokens"])
    if not all(_is_whole(length, 1, MAX_TOKENS) for length in lengths):
        raise ValueError(f"prompt_tokens and tokens must be whole numbers from 1 to {MAX_TOKENS}")
    key, after = (_read_key(entry, name) for name in ("id", "after"))
    if "wait_s" in entry and after is None:
        raise ValueError("wait_s needs after: the id of the request whose answer is waited for")
    prefix, block = _read_prefix(entry)
    request = TraceRequest(float(at), *lengths, only, None, float(wait_s), prefix, block)  # type: ignore[arg-type]  # checked above
    return _Line(number, request, key, after)


def _is_seconds(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < most


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _read_key(entry: Json, name: str) -> Key | None:
    key = entry.get(name)
    if key is not None and (isinstance(key, bool) or not isinstance(key, int | str)):
        raise ValueError(f"{name} must be a whole number or a text")
    return key


def _read_prefix(entry: Json) -> tuple[tuple[int, ...], int]:
    """Reads ids; a run of ids, each one more than the one before, may be written as [first, count]."""
    if "prefix" not in entry:
        return (), 0
    prefix, block, ids = entry["prefix"], entry.get("block"), list[int]()
    if not _is_whole(block, 1, MAX_TOKENS):
        raise ValueError("prefix needs block: the tokens of each block")
    for item in prefix if isinstance(prefix, list) else [None]:
        first, count = item if isinstance(item, list) and len(item) == 2 else (item, 1)
        if not (_is_whole(first, 0, MAX_ID) and _is_whole(count, 1, MAX_BLOCKS - len(ids))):
            raise ValueError("prefix must be a list of block ids, or of [first id, count]")
        ids += range(first, first + count)  # type: ignore[arg-type, operator]  # checked above
    if (len(ids) - 1) * block >= entry["prompt_tokens"]:  # type: ignore[operator]  # checked before
        raise ValueError("prefix must not be longer than the prompt")
    return tuple(ids), block  # type: ignore[return-value]  # checked above


def _find_places(path: Path, lines: Sequence[_Line]) -> Mapping[Key, int]:
    places: dict[Key, int] = {}
    for place, line in enumerate(lines):
        if line.key is not None and places.setdefault(line.key, place) != place:
            raise ValueError(f"{path}, line {line.number}: id {line.key!r} belongs to another request")
    return places


def _find_place(path: Path, line: _Line, place: int, places: Mapping[Key, int]) -> int | None:
    if line.after is None:
        return None
    if line.after not in places:
        raise ValueError(f"{path}, line {line.number}: after {line.after!r}: no request has this id")
    if places[line.after] >= place:
        raise ValueError(f"{path}, line {line.number}: after {line.after!r}: that request comes no earlier")
    return places[line.after]


def write_trace(path: Path, trace: Sequence[TraceRequest], header: Json) -> None:
    """Writes a file, gzipped where its name ends so. Equal traces give equal files. Raises OSError, and ValueError."""
    if len(trace) > MAX_REQUESTS:
        raise ValueError(f"{len(trace)} requests; a trace has at most {MAX_REQUESTS}")
    content = "".join(f"{line}\n" for line in list_lines(trace, header)).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def list_lines(trace: Sequence[TraceRequest], header: Json | None = None) -> Iterator[str]:
    """Yields the lines that `read_trace` reads. `header`: what the first line has beside the requests."""
    if header:
        yield json.dumps(header)
    awaited = {request.after for request in trace}
    for index, request in enumerate(trace):
        shown: dict[str, object] = {"id": index} if index in awaited else {}
        shown |= {"at": round(request.at, 6), "prompt_tokens": request.prompt_tokens, "tokens": request.tokens}
        if request.only:
            shown["only"] = request.only
        if request.after is not None:
            shown |= {"after": request.after, "wait_s": round(request.wait_s, 3)}
        if request.prefix:
            shown |= {"prefix": list(_list_runs(request.prefix)), "block": request.block}
        yield json.dumps(shown)


def _list_runs(ids: Sequence[int]) -> Iterator[int | list[int]]:
    first = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != ids[end - 1] + 1:
            yield [ids[first], end - first] if end - first > 1 else ids[first]
            first = end

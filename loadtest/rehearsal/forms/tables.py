"""Azure's and BurstGPT's csv: a row for each request. Rows without an answer's tokens are dropped and counted.

BurstGPT's README calls those failures. Newer versions of its files have a session and how long an answer took: a
session's next request waits for the answer before it.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from loadtest.rehearsal.forms.source import Completion, Source, on_line, read_count, sort
from loadtest.rehearsal.traces import TraceRequest

EMPTY = "no answer"  # or no prompt


def read_azure(file: io.TextIOBase, _completion: Completion) -> Source:
    """Reads TIMESTAMP, ContextTokens, GeneratedTokens. Raises ValueError with the line."""
    requests, first, dropped = list[TraceRequest](), None, 0
    for number, row in _read_rows(file, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        with on_line(number):
            at = datetime.fromisoformat(row["TIMESTAMP"].strip())
            prompt_tokens, tokens = (read_count(row[name], name) for name in ("ContextTokens", "GeneratedTokens"))
            first = first or at
            since_s = (at - first).total_seconds()
        if prompt_tokens and tokens:
            requests.append(TraceRequest(since_s, prompt_tokens, tokens))
        dropped += not (prompt_tokens and tokens)
    return Source(sort(requests), {EMPTY: dropped})


def read_burstgpt(file: io.TextIOBase, _completion: Completion) -> Source:
    """Reads Timestamp, Request tokens, Response tokens, and Session ID and Elapsed time where there are any."""
    rows, dropped = list[tuple[TraceRequest, str, float]](), 0
    for number, row in _read_rows(file, ("Timestamp", "Request tokens", "Response tokens")):
        with on_line(number):
            at = _read_seconds(row, "Timestamp")
            prompt_tokens, tokens = (read_count(row[name], name) for name in ("Request tokens", "Response tokens"))
            elapsed_s = _read_seconds(row, "Elapsed time") if row.get("Elapsed time") else 0.0
        if prompt_tokens and tokens:
            rows.append((TraceRequest(at, prompt_tokens, tokens), row.get("Session ID", ""), elapsed_s))
        dropped += not (prompt_tokens and tokens)
    return Source(sort(_link_sessions(rows)), {EMPTY: dropped})


def _link_sessions(rows: Sequence[tuple[TraceRequest, str, float]]) -> list[TraceRequest]:
    requests, ends = list[TraceRequest](), dict[str, tuple[int, float]]()
    for index, (request, session, elapsed_s) in enumerate(sorted(rows, key=lambda row: row[0].at)):
        after, ended = ends.get(session, (None, 0.0)) if session else (None, 0.0)
        wait_s = 0.0 if after is None else max(request.at - ended, 0.0)
        requests.append(replace(request, after=after, wait_s=wait_s))
        ends[session] = (index, request.at + elapsed_s)
    return requests


def _read_seconds(row: Mapping[str, str], name: str) -> float:
    try:
        seconds = float(row[name])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < 1e11:
        raise ValueError(f"{name} must be a number of seconds: {row[name][:40]!r}")
    return seconds


def _read_rows(file: io.TextIOBase, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yields rows with the numbers of their lines, by column. Raises ValueError where a column is missing."""
    rows = csv.reader(file, strict=True)
    with on_line(1):
        names = next(rows, [])
        if missing := [name for name in columns if name not in names]:
            raise ValueError(f"has no column {missing[0]}")
    while True:
        with on_line(rows.line_num + 1):
            try:
                row = next(rows, None)
            except csv.Error as exc:
                raise ValueError(str(exc)) from exc
            if row is not None and row and len(row) != len(names):
                raise ValueError(f"has {len(row)} fields, the first line {len(names)}")
        if row is None:
            return
        if row:  # the last line may be empty
            yield rows.line_num, dict(zip(names, row, strict=True))

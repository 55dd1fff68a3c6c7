"""One streamed answer as it arrives: bytes with their times in; token times, usage and latencies out.

Sans-I/O: times are handed in, taken where the bytes left the socket. Knows OpenAI's chunks and no connection.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from loadtest.client.event_shape import EventShape

DONE = b"[DONE]"
MAX_SHAPES = 8  # tried in one answer: with a server whose events are never alike each attempt would be wasted


@dataclass(slots=True)
class StreamedAnswer:
    """An answer that `begin`, `head` and `body` fill; times in seconds of one monotonic clock. `due_at`: when the
    request of an open loop was due; latencies count from there.

    `times` and `counts`: when each token event arrived, and how many tokens had arrived by then. Counts are the
    server's own where each event carried usage (`is_counted`), else one per event, to be scaled by the final usage.
    """

    started_at: float = 0.0
    due_at: float | None = None
    finished_at: float | None = None  # when finish_reason arrived: with the last token, before usage and [DONE]
    is_complete: bool = False
    status: int = 0
    backend: str | None = None
    times: list[float] = field(default_factory=list, repr=False)
    counts: list[int] = field(default_factory=list, repr=False)
    is_counted: bool = True
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt; few servers report it
    error: str | None = None
    _rest: bytes = b""
    _shape: EventShape | None = None
    _shapes_left: int = MAX_SHAPES

    def begin(self, at: float) -> None:
        self.started_at = at

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.backend = headers.get("x-crossover-backend")

    def body(self, data: bytes, at: float) -> None:
        """Takes server-sent events, cut anywhere. OpenAI servers write one line of data per event."""
        if self.status != 200:
            self._rest += data
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line and not self._read_usual(line, at) and line.startswith(b"data:"):
                self._event(line, at)

    def end(self) -> None:
        """Ends the answer. Whether it is the requested work is for AnswerGate to decide."""
        self.is_complete = self.finish_reason is not None and self.completion_tokens is not None
        if self.status != 200:
            self.error = f"HTTP {self.status}: {_message(self._rest)}"
        elif self.is_complete and not self.times:  # a complete answer without text: its tokens had arrived by the end
            self._token(self.finished_at or self.started_at, self.completion_tokens)

    @property
    def ttft_s(self) -> float | None:
        return self.times[0] - self._requested_at if self.times else None

    @property
    def e2e_s(self) -> float | None:
        return self.finished_at - self._requested_at if self.finished_at is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first event: right however tokens are bundled, unlike gaps between chunks."""
        if self.finished_at is None or not self.completion_tokens:
            return None
        after_first = self.completion_tokens - self.counts[0] * self.tokens_per_count
        return (self.finished_at - self.times[0]) / after_first if after_first > 0 else None

    @property
    def tokens_per_count(self) -> float:
        """1 where the server counts every event, else the factor by which the events add up to the final usage."""
        if self.is_counted or not self.is_complete or not self.completion_tokens:
            return 1.0
        return self.completion_tokens / self.counts[-1]

    def count_between(self, start: float, end: float) -> int:
        """Returns by how much `counts` rose in (start, end]; times `tokens_per_count` it is a number of tokens."""
        return self._count_at(end) - self._count_at(start)

    @property
    def _requested_at(self) -> float:
        return self.started_at if self.due_at is None else self.due_at

    def _count_at(self, at: float) -> int:
        index = bisect_right(self.times, at)
        return self.counts[index - 1] if index else 0

    def _read_usual(self, line: bytes, at: float) -> bool:
        """Does what `_event` does, in a third of the time, if the line is one more token's and has the usual shape."""
        shape = self._shape
        if shape is None:
            return False
        count = self.counts[-1] + 1
        if not shape.matches(line, count):
            return False
        self.times.append(at)
        self.counts.append(count)
        if shape.endings:
            self.prompt_tokens = shape.prompt_tokens
            self.completion_tokens = count
        return True

    def _event(self, line: bytes, at: float) -> None:
        data = line[5:].strip()
        if data == DONE:
            return
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.error = self.error or "an event of the stream is not JSON"
            return
        if chunk.get("error"):
            self.error = self.error or str(chunk["error"].get("message"))
            return
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens")
            if details := usage.get("prompt_tokens_details"):
                self.cached_tokens = details.get("cached_tokens")
        for choice in chunk.get("choices") or ():
            self._choice(choice, usage.get("completion_tokens") if usage else None, at)
        if self.counts and self._shapes_left:
            self._learn(line, chunk)

    def _learn(self, line: bytes, chunk: Mapping[str, object]) -> None:
        """Learns the usual shape. It may change within an answer: the first event often carries the role as well."""
        self._shapes_left -= 1
        self._shape = EventShape.of(line, chunk) or self._shape

    def _choice(self, choice: Mapping[str, object], count: int | None, at: float) -> None:
        if count is not None and self.is_counted:
            self._token(at, count)
        elif _has_text(choice):
            self.is_counted = False
            self._token(at, None)
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])
            self.finished_at = at

    def _token(self, at: float, count: int | None) -> None:
        so_far = self.counts[-1] if self.counts else 0
        count = so_far + 1 if count is None else count
        if count > so_far:
            self.times.append(at)
            self.counts.append(count)


def _has_text(choice: Mapping[str, object]) -> bool:
    """Whether a chunk shows that a token was generated. A role alone does not: it would count as the first token."""
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return bool(choice.get("text"))


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no body"

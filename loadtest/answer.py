"""One streamed answer as it arrives: bytes with their times in, token times, usage and headers out.

Sans-I/O: times are handed in, taken where the bytes left the socket. Knows OpenAI's chunks and no connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from loadtest.event_shape import EventShape

DONE = b"[DONE]"
MAX_SHAPES = 8  # looked for in one answer: a server whose events are never alike would make it pay for each


@dataclass(slots=True)
class Answer:
    """Filled by `begin`, `head` and `body`; times in seconds of one monotonic clock. `due_at`: when an open loop was to
    ask; latencies then count from there.

    `times` and `counts` are the token events: when, and how many tokens had come by then. Counts are the server's own
    where each event carried usage (`is_counted`), else one per event, to be scaled by the usage at the end.
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
    cached_tokens: int | None = None  # of the prompt's; few servers tell
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
        """Server-sent events, cut anywhere. OpenAI servers write one line of data per event."""
        if self.status != 200:
            self._rest += data
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line and not self._usual(line, at) and line.startswith(b"data:"):
                self._event(line, at)

    def end(self) -> None:
        """The response is over; whether it was an answer is for checks to say."""
        self.is_complete = self.finish_reason is not None and self.completion_tokens is not None
        if self.status != 200:
            self.error = f"HTTP {self.status}: {_message(self._rest)}"
        elif self.is_complete and not self.times:  # a whole answer without text: its tokens came by the end
            self._token(self.finished_at or self.started_at, self.completion_tokens)

    def _usual(self, line: bytes, at: float) -> bool:
        """Does what `_event` would with one more token's line, if it is one like those before: a third of the time."""
        shape = self._shape
        if shape is None:
            return False
        count = self.counts[-1] + 1
        if not shape.has(line, count):
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
        """Events may change their shape within an answer: the first often shows the role as well."""
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
    """Whether a chunk shows that a token was generated. A role alone does not: it would pass for the first token."""
    delta = choice.get("delta")
    if isinstance(delta, Mapping):
        return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
    return bool(choice.get("text"))


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no body"

"""vLLM's JSON: a GenerateRequest to a body for either of its token routes, and their events back to ids and an end.

Bytes in and out by plain calls. Knows no sockets. Field names are those of vLLM's SamplingParams and of the two routes'
request models.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.backends.calls import LARGEST_VOCABULARY, MAX_LAYOUTS, End
from gateway.backends.sse import EventStream
from gateway.core import FinishReason, GenerateRequest, Guide, GuideKind, SamplingParams
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
)
from gateway.json_limits import exceeds

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

# Usage comes in an event behind the last ids, and has the cached tokens of the prompt, if the server shows them.
STREAM: Final = {"stream": True, "stream_options": {"include_usage": True}}

SMALLEST_TOP_P = 1e-6  # vLLM refuses 0, which OpenAI allows; this value too leaves only the most probable token

# vLLM draws a seed in place of -1. Other engines use -1 as a seed, so vLLM gets another number for it.
NO_SEED, NO_SEED_REPLACEMENT = -1, 2**63 - 1

MAX_ID_DIGITS: Final = 10  # an id has 32 bits
# Limits of one event, beyond which it is not parsed: bytes for each token that it brings or echoes, with digits and
# text; bytes for its other fields; and their strings, arrays and objects.
EVENT_ID_BYTES, EVENT_BASE_BYTES, EVENT_BASE_PARTS = 64, 64 * 1024, 1024

GUIDE_FIELDS = {GuideKind.JSON_SCHEMA: "json", GuideKind.REGEX: "regex", GuideKind.GRAMMAR: "grammar"}
FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def encode(route: str, request: GenerateRequest, call_id: str, *, heeds_priority: bool = False) -> bytes:
    """Returns the body for `route`; vLLM logs `call_id`. Only COMPLETIONS can be asked for log-probabilities."""
    body = (_generate_body if route == GENERATE else _completions_body)(request, call_id)
    if heeds_priority and request.params.priority:
        body["priority"] = request.params.priority
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return orjson.dumps(body)


def _generate_body(request: GenerateRequest, call_id: str) -> dict[str, object]:
    return {
        "request_id": call_id,
        "token_ids": request.prompt.token_ids,
        "sampling_params": {**_sampling_fields(request), "detokenize": False},
        **STREAM,
    }


def _completions_body(request: GenerateRequest, call_id: str) -> dict[str, object]:
    return {
        "request_id": call_id,
        "prompt": request.prompt.token_ids,
        **_sampling_fields(request),
        **_logprob_fields(request.params),
        "return_token_ids": True,
        **STREAM,
    }


def _sampling_fields(request: GenerateRequest) -> dict[str, object]:
    """Sets every field, because vLLM fills missing fields from the model's generation_config.json."""
    params = request.params
    sampling: dict[str, object] = {
        "max_tokens": params.max_tokens,
        "min_tokens": params.binding_min_tokens,
        "temperature": params.temperature,
        "top_p": max(params.top_p, SMALLEST_TOP_P),
        "top_k": params.top_k,
        "min_p": params.min_p,
        "repetition_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": _stop_token_ids(request),
    }
    if params.seed is not None:
        sampling["seed"] = NO_SEED_REPLACEMENT if params.seed == NO_SEED else params.seed
    if params.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.guide is not None:
        sampling["structured_outputs"] = _guide_field(params.guide)
    return sampling


def _guide_field(guide: Guide) -> dict[str, object]:
    if guide.kind is GuideKind.JSON:
        return {"json_object": True}
    return {GUIDE_FIELDS[guide.kind]: guide.text}


def _logprob_fields(params: SamplingParams) -> dict[str, object]:
    """Sets one count for prompt and answer, which vllm_scores cuts, and `echo`, without which a prompt has none."""
    if params.logprobs is None and params.prompt_logprobs is None:
        return {}
    return {
        "logprobs": max(params.logprobs or 0, params.prompt_logprobs or 0),
        "return_tokens_as_token_ids": True,
        "echo": params.prompt_logprobs is not None,
    }


def _stop_token_ids(request: GenerateRequest) -> list[int]:
    """Includes the model's end ids: vLLM itself knows one of them, or none if it was started without a tokenizer."""
    end_ids = () if request.params.ignore_eos else request.eos_token_ids
    return list(dict.fromkeys((*end_ids, *request.params.stop_token_ids)))


class EventReader:
    """Reads one streamed answer; pass it the body's bytes.

    Usually two events differ only in the digits of the id. Once the place of the digits is known, an event that is
    equal everywhere else is not parsed, which saves most of the cost of reading. Ids are below `vocab_size`.
    `if_refused`: see `error_of_answer`. `cached`: how many of the prompt's tokens the engine's cache held; None before
    it has reported usage.
    """

    must_abort = False

    __slots__ = (
        "_after",
        "_before",
        "_events",
        "_id_at",
        "_id_end",
        "_if_refused",
        "_is_at_event_start",
        "_layouts_left",
        "_max_ids",
        "_peer",
        "_prompt_tokens",
        "_vocab_size",
        "cached",
    )

    def __init__(
        self,
        peer: str,
        request: GenerateRequest,
        vocab_size: int = LARGEST_VOCABULARY,
        if_refused: GatewayError | None = None,
    ) -> None:
        self._peer = peer
        self._vocab_size = vocab_size
        self._if_refused = if_refused
        self._prompt_tokens = len(request.prompt)
        self._max_ids = self._prompt_tokens + request.params.max_tokens
        self.cached: int | None = None
        self._events = EventStream(EVENT_BASE_BYTES + self._max_ids * self._bytes_per_id(request))
        self._is_at_event_start = False  # a layout is known, and the next byte is the first of an event
        self._before, self._after = b"", b""  # the bytes before and after the digits, the event's frame included
        self._id_at, self._id_end = 0, 0  # _id_end counts from the end, so it is negative
        self._layouts_left = MAX_LAYOUTS

    def read(self, data: bytes) -> tuple[Sequence[int], End | None]:
        """Returns the ids that `data` completed, and how generation ended, None if it has not."""
        # Slices are compared: compiled, that takes a quarter of the time of startswith and endswith.
        if self._is_at_event_start and data[: self._id_at] == self._before and data[self._id_end :] == self._after:
            digits = data[self._id_at : self._id_end]
            if digits.isdigit() and digits >= b"1" and len(digits) <= MAX_ID_DIGITS:  # no JSON number begins with 0
                token_id = int(digits)
                if token_id < self._vocab_size:
                    return (token_id,), None
        return self._parse(data)

    @staticmethod
    def _bytes_per_id(request: GenerateRequest) -> int:
        return EVENT_ID_BYTES

    def _max_parts_and_commas(self) -> tuple[int, int]:
        """Returns how many strings, arrays and objects an event may hold, and how many commas."""
        return EVENT_BASE_PARTS, EVENT_BASE_PARTS + 2 * self._max_ids

    def _parse(self, data: bytes) -> tuple[Sequence[int], End | None]:
        token_ids: list[int] = []
        try:
            events = self._events.feed(data)
            for index, event in enumerate(events):
                end = self._read_event(event, token_ids)
                if end is not None:
                    self._read_usage(events[index + 1 :])
                    return token_ids, end
        except (ValueError, LookupError, TypeError, AttributeError):
            return token_ids, self._protocol_error()
        if len(events) == len(token_ids) == 1 and self._layouts_left and data == b"data: %b\n\n" % events[0]:
            self._learn_layout(data, token_ids[0])
        self._is_at_event_start = self._before != b"" and self._events.is_between_events
        return token_ids, None

    def _protocol_error(self) -> GatewayError:
        return BackendProtocolError(f"{self._peer} sent an event that is not one of its own")

    def _learn_layout(self, data: bytes, token_id: int) -> None:
        """Remember the layout of an event with one id and no end."""
        self._layouts_left -= 1
        digits = b"%d" % token_id
        if (at := _find_id(data, digits)) is not None:
            self._id_at, self._id_end = at, at + len(digits) - len(data)
            self._before, self._after = data[: self._id_at], data[self._id_end :]

    def _read_event(self, event: bytes, token_ids: list[int]) -> End | None:
        if event == b"[DONE]":
            # Recent vLLM ends an aborted answer like this, without any finish_reason, if the abort came without ids.
            return BackendUnavailable(f"{self._peer} stopped before the answer was complete")
        if exceeds(event, *self._max_parts_and_commas()):
            raise ValueError("an event beyond its limits")
        chunk = orjson.loads(event)
        if "error" in chunk:
            return error_of_answer(self._peer, int(chunk["error"].get("code") or 500), event, self._if_refused)
        return self._read_chunk(chunk, token_ids)

    def _read_chunk(self, chunk: dict[str, Any], token_ids: list[int]) -> End | None:  # Any: a decoded JSON object
        self._note_usage(chunk.get("usage"))
        for choice in chunk["choices"]:
            new_ids = choice.get("token_ids")
            if new_ids:
                if any(type(token_id) is not int or not 0 <= token_id < self._vocab_size for token_id in new_ids):
                    raise TypeError  # the server is not trusted
                token_ids.extend(new_ids)
            if (reason := choice.get("finish_reason")) is not None:
                return self._end(reason, choice)
            if new_ids is None:
                return self._no_ids_error()
        return None

    def _read_usage(self, events: Sequence[bytes]) -> None:
        """Reads what follows the end, and lets pass what is no usage: the answer is whole."""
        for event in events:
            if event != b"[DONE]" and not exceeds(event, *self._max_parts_and_commas()):
                with suppress(ValueError, AttributeError):
                    self._note_usage(orjson.loads(event).get("usage"))

    def _note_usage(self, usage: Any) -> None:  # Any: decoded JSON
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")  # vLLM leaves it out for 0 tokens
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            self.cached = min(max(cached, 0), self._prompt_tokens) if type(cached) is int else 0

    def _end(self, reason: str, choice: dict[str, Any]) -> End:  # Any: a decoded JSON object
        if reason == "abort":  # a server that drains answers with status 200 and this reason
            return BackendUnavailable(f"{self._peer} aborted the request")
        if choice.get("token_ids") is None:
            return self._no_ids_error()
        if reason in FINISH_REASONS:
            return FINISH_REASONS[reason]
        logger.warning("%s ended an answer with the unknown finish_reason %.100r", self._peer, reason)
        return BackendError(f"{self._peer} ended the answer for an unknown reason")

    def _no_ids_error(self) -> GatewayError:
        return BackendProtocolError(f"{self._peer} does not return token ids; it needs a vLLM with return_token_ids")


def _find_id(data: bytes, digits: bytes) -> int | None:
    """Returns where in `data` the digits of the event's one token id begin; None if that is not certain.

    It is certain if replacing the digits there changes the parsed event's token id and nothing else.
    """
    other = int(digits) + 1
    at = data.find(b"[%b]" % digits) + 1
    while at:
        probe = orjson.loads(b"%b%d%b" % (data[6:at], other, data[at + len(digits) : -2]))
        choice = probe["choices"][0]
        if choice.get("token_ids") == [other]:
            choice["token_ids"] = [int(digits)]
            return at if probe == orjson.loads(data[6:-2]) else None
        at = data.find(b"[%b]" % digits, at) + 1
    return None


@dataclass(frozen=True, slots=True)
class EngineError:
    """One row of the error table: the error and message for answers with one of `statuses` and `text` in the body."""

    statuses: range
    text: bytes
    error: Callable[[str], GatewayError]
    message: str


# The first match wins. The gateway has checked every field before, so a 4xx about the request is a disagreement between
# us and the engine, not the client's fault. Only the engine's limit on the context may be narrower than ours.
ENGINE_ERRORS = (
    EngineError(range(400, 500), b"maximum context length", ContextLengthExceeded, "the prompt is too long for {peer}"),
    EngineError(range(400, 500), b"max_model_len", ContextLengthExceeded, "the prompt is too long for {peer}"),
    EngineError(
        range(401, 405), b"", partial(BackendUnavailable, was_lost=False), "{peer} does not serve this model to us"
    ),
    EngineError(range(429, 430), b"", BackendFull, "{peer} is full"),
    # A full queue is a 503 too. If the server is not ready, the next probe finds it out.
    EngineError(range(503, 504), b"", BackendFull, "{peer} is full or not ready"),
    # The API server outlives its engine for a moment, and then answers with a 500.
    EngineError(range(500, 600), b"EngineCore encountered", BackendUnavailable, "{peer} has lost its engine"),
    EngineError(range(500, 600), b"EngineDead", BackendUnavailable, "{peer} has lost its engine"),
    EngineError(range(500, 600), b"", BackendError, "{peer} failed"),
)


REFUSAL_STATUSES = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


def error_of_answer(peer: str, status: int, body: bytes, if_refused: GatewayError | None = None) -> GatewayError:
    """Returns the error for an error answer or an error event. Its text goes only to the debug log.

    `if_refused`: the error if the engine refuses the request itself, for requests that only an engine can check.
    """
    logger.debug("%s answered %d: %r", peer, status, body[:2000])
    for row in ENGINE_ERRORS:
        if status in row.statuses and row.text in body:
            return row.error(row.message.format(peer=peer))
    if if_refused is not None and status in REFUSAL_STATUSES:
        return if_refused
    return BackendProtocolError(f"{peer} refused the request ({status})")

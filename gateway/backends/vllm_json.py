"""vLLM's wire: a GenerateRequest to JSON for either of its token routes, and their events back to ids and an end.

Bytes in and out by plain calls; knows no sockets. Field names are those of
vLLM's SamplingParams and of the two routes' own request models.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from gateway.backends.calls import LARGEST_VOCABULARY, End
from gateway.backends.sse import EventStream
from gateway.bulk import is_bulky
from gateway.core import FinishReason, GenerateRequest, Guide, GuideKind, SamplingParams
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
)

logger = logging.getLogger(__name__)

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"

SMALLEST_TOP_P = 1e-6  # vLLM refuses 0, which OpenAI allows; this also leaves the most probable token only

TAKEN_FOR_NO_SEED, NEIGHBOUR = -1, 2**63 - 1  # vLLM draws one for the former; a seed is a seed on every engine

MAX_LAYOUTS = 4  # how often an answer's form is learnt, should it change
MAX_DIGITS: Final = 10  # an id has 32 bits
# Of one event: each token that it brings or echoes, with its digits and text; and its other fields. More is not parsed.
ID_BYTES, FORM_BYTES, FORM_PARTS = 64, 64 * 1024, 1024

GUIDE_FIELDS = {GuideKind.JSON_SCHEMA: "json", GuideKind.REGEX: "regex", GuideKind.GRAMMAR: "grammar"}
FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def encode(route: str, request: GenerateRequest, call_id: str) -> bytes:
    """The body for `route`; `call_id` shows up in vLLM's own logs. Only one route is asked for log-probabilities."""
    body = (_generate if route == GENERATE else _completions)(request, call_id)
    if request.params.priority:
        body["priority"] = request.params.priority
    return orjson.dumps(body)


def _generate(request: GenerateRequest, call_id: str) -> dict[str, object]:
    return {
        "request_id": call_id,
        "token_ids": request.prompt.token_ids,
        "sampling_params": {**_sampling(request), "detokenize": False},
        "stream": True,
    }


def _completions(request: GenerateRequest, call_id: str) -> dict[str, object]:
    return {
        "request_id": call_id,
        "prompt": request.prompt.token_ids,
        **_sampling(request),
        **_scores(request.params),
        "return_token_ids": True,
        "stream": True,
    }


def _sampling(request: GenerateRequest) -> dict[str, object]:
    """Every value is written out, because what is left out is filled from the model's generation_config.json."""
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
        sampling["seed"] = NEIGHBOUR if params.seed == TAKEN_FOR_NO_SEED else params.seed
    if params.logit_bias:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias}
    if params.guide is not None:
        sampling["structured_outputs"] = _guide(params.guide)
    return sampling


def _guide(guide: Guide) -> dict[str, object]:
    if guide.kind is GuideKind.JSON:
        return {"json_object": True}
    return {GUIDE_FIELDS[guide.kind]: guide.text}


def _scores(params: SamplingParams) -> dict[str, object]:
    """A stream tells a prompt's log-probabilities by `echo` alone, with one count for both; vllm_scores cuts them."""
    if params.logprobs is None and params.prompt_logprobs is None:
        return {}
    return {
        "logprobs": max(params.logprobs or 0, params.prompt_logprobs or 0),
        "return_tokens_as_token_ids": True,
        "echo": params.prompt_logprobs is not None,
    }


def _stop_token_ids(request: GenerateRequest) -> list[int]:
    """With the model's end ids: vLLM itself knows one of them, or none when started without a tokenizer."""
    end_ids = () if request.params.ignore_eos else request.eos_token_ids
    return list(dict.fromkeys((*end_ids, *request.params.stop_token_ids)))


class Answer:
    """One streamed answer: give it the body's bytes.

    From one event to the next usually nothing changes but the digits of the id. Once it is known where they stand, an
    event that is equal in all else need not be parsed, which saves most of what reading costs. Ids are below
    `vocab_size`. `if_refused`: see `refusal`.
    """

    is_cut = False

    __slots__ = (
        "_after",
        "_before",
        "_events",
        "_id_at",
        "_id_end",
        "_if_refused",
        "_is_between",
        "_most_ids",
        "_moulds_left",
        "_peer",
        "_vocab_size",
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
        self._most_ids = len(request.prompt) + request.params.max_tokens
        self._events = EventStream(FORM_BYTES + self._most_ids * self._bytes_per_id(request))
        self._is_between = False  # a form is known, and an event's first byte is next
        self._before, self._after = b"", b""  # what stands before and after the digits, the event's frame included
        self._id_at, self._id_end = 0, 0  # the latter from the end
        self._moulds_left = MAX_LAYOUTS

    def read(self, data: bytes) -> tuple[Sequence[int], End | None]:
        """The ids that `data` completed, and how generation ended if it did."""
        # Parts are compared: compiled, that takes a quarter of what startswith and endswith take.
        if self._is_between and data[: self._id_at] == self._before and data[self._id_end :] == self._after:
            digits = data[self._id_at : self._id_end]
            if digits.isdigit() and digits >= b"1" and len(digits) <= MAX_DIGITS:  # no JSON number begins with 0
                token_id = int(digits)
                if token_id < self._vocab_size:
                    return (token_id,), None
        return self._parse(data)

    @staticmethod
    def _bytes_per_id(request: GenerateRequest) -> int:
        return ID_BYTES

    def _count_most(self) -> tuple[int, int]:
        """The strings, arrays and objects that an event may hold, and its commas."""
        return FORM_PARTS, FORM_PARTS + 2 * self._most_ids

    def _parse(self, data: bytes) -> tuple[Sequence[int], End | None]:
        token_ids: list[int] = []
        try:
            events = self._events.feed(data)
            for event in events:
                end = self._read_event(event, token_ids)
                if end is not None:
                    return token_ids, end
        except (ValueError, LookupError, TypeError, AttributeError):
            return token_ids, self._nonsense()
        if len(events) == len(token_ids) == 1 and self._moulds_left and data == b"data: %b\n\n" % events[0]:
            self._learn(data, token_ids[0])
        self._is_between = self._before != b"" and self._events.is_between_events
        return token_ids, None

    def _nonsense(self) -> GatewayError:
        return BackendProtocolError(f"{self._peer} sent an event that is not one of its own")

    def _learn(self, data: bytes, token_id: int) -> None:
        """Remember the form of an event that brought one id and no end."""
        self._moulds_left -= 1
        digits = b"%d" % token_id
        if (at := _find_id(data, digits)) is not None:
            self._id_at, self._id_end = at, at + len(digits) - len(data)
            self._before, self._after = data[: self._id_at], data[self._id_end :]

    def _read_event(self, event: bytes, token_ids: list[int]) -> End | None:
        if event == b"[DONE]":
            # Recent vLLM ends an aborted answer like this when the abort came with no ids: no finish_reason at all.
            return BackendUnavailable(f"{self._peer} stopped before the answer was complete")
        if is_bulky(event, *self._count_most()):
            raise ValueError("more than an event holds")
        chunk = orjson.loads(event)
        if "error" in chunk:
            return refusal(self._peer, int(chunk["error"].get("code") or 500), event, self._if_refused)
        return self._read_chunk(chunk, token_ids)

    def _read_chunk(self, chunk: dict[str, Any], token_ids: list[int]) -> End | None:  # Any: a decoded JSON object
        for choice in chunk["choices"]:
            new_ids = choice.get("token_ids")
            if new_ids:
                if any(type(token_id) is not int or not 0 <= token_id < self._vocab_size for token_id in new_ids):
                    raise TypeError  # a server may send anything
                token_ids.extend(new_ids)
            if (reason := choice.get("finish_reason")) is not None:
                return self._end(reason, choice)
            if new_ids is None:
                return self._no_ids()
        return None

    def _end(self, reason: str, choice: dict[str, Any]) -> End:  # Any: a decoded JSON object
        if reason == "abort":  # a server that drains answers 200 and this
            return BackendUnavailable(f"{self._peer} gave the request up")
        if choice.get("token_ids") is None:
            return self._no_ids()
        if reason in FINISH_REASONS:
            return FINISH_REASONS[reason]
        logger.warning("%s ended an answer with the unknown finish_reason %.100r", self._peer, reason)
        return BackendError(f"{self._peer} ended the answer for a reason of its own")

    def _no_ids(self) -> GatewayError:
        return BackendProtocolError(f"{self._peer} does not return token ids; it needs a vLLM with return_token_ids")


def _find_id(data: bytes, digits: bytes) -> int | None:
    """Where in an event, its frame included, the digits of its one id stand; None if it cannot be told for certain.

    It is certain when another number put there comes out as the id, and nothing else comes out changed.
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
class Refusal:
    """One row of the error table: which errors, by status and a part of their text, become what."""

    statuses: range
    text: bytes
    error: type[GatewayError]
    message: str


# First match wins. The gateway has checked every field before, so a 4xx about the request is a disagreement between us
# and the engine, not the client's fault; only its own limit on the context may be narrower than what we know.
REFUSALS = (
    Refusal(range(400, 500), b"maximum context length", ContextLengthExceeded, "the prompt is too long for {peer}"),
    Refusal(range(400, 500), b"max_model_len", ContextLengthExceeded, "the prompt is too long for {peer}"),
    Refusal(range(401, 405), b"", BackendUnavailable, "{peer} does not serve this model to us"),
    Refusal(range(429, 430), b"", BackendFull, "{peer} is full"),
    # Its queue's limit is a 503 too. A server that is really not ready shows that to the next probe.
    Refusal(range(503, 504), b"", BackendFull, "{peer} is full or not ready"),
    # The API server outlives its engine for a moment, and says so with a 500.
    Refusal(range(500, 600), b"EngineCore encountered", BackendUnavailable, "{peer} has lost its engine"),
    Refusal(range(500, 600), b"EngineDead", BackendUnavailable, "{peer} has lost its engine"),
    Refusal(range(500, 600), b"", BackendError, "{peer} failed"),
)


REFUSED = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


def refusal(peer: str, status: int, body: bytes, if_refused: GatewayError | None = None) -> GatewayError:
    """What an error answer, or an error event, means; its text goes to the debug log only.

    `if_refused`: why the request itself may have been refused, where it holds what only an engine can judge.
    """
    logger.debug("%s answered %d: %r", peer, status, body[:2000])
    for row in REFUSALS:
        if status in row.statuses and row.text in body:
            return row.error(row.message.format(peer=peer))
    if if_refused is not None and status in REFUSED:
        return if_refused
    return BackendProtocolError(f"{peer} refused the request ({status})")

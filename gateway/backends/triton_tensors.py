"""Triton's tensors: a GenerateRequest to the tensors of the `tensorrt_llm` model, and its streamed responses to ids.

Protobuf messages out, serialized messages in, by plain calls. Knows no channel. Every tensor has a leading batch
dimension of 1.
"""

import logging
import re
import struct
from collections.abc import Iterator, Sequence
from secrets import randbits
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from gateway.backends.calls import LARGEST_VOCABULARY, MAX_LAYOUTS, End
from gateway.backends.capabilities import guide_error
from gateway.core import FinishReason, GenerateRequest, Guide, GuideKind, Need, Needs, SamplingParams
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
    NeedRefused,
)

logger = logging.getLogger(__name__)

# tritonclient publishes no types for its messages.
InferRequest: TypeAlias = Any
StreamResponse: TypeAlias = Any

Tensor: TypeAlias = tuple[str, str, tuple[int, ...], bytes]  # name, datatype, shape, little-endian content

OUTPUTS = ("output_ids", "sequence_length")  # if outputs are named, both are required; any others would cost copies
PAD_OFFSET = -1
UINT64_MASK = (1 << 64) - 1
ID = struct.Struct("<i")
ID_BYTES = ID.size
BIAS = struct.Struct("<f")
# For JSON the engine's own guide type allows an array too; OpenAI and vLLM require an object.
ANY_OBJECT = Guide(GuideKind.JSON_SCHEMA, '{"type": "object"}')


def encode(request: GenerateRequest, model: str, call_id: str, vocab_size: int = 0) -> InferRequest:
    """Returns the ModelInferRequest. `call_id` has to be unique in flight: it is the TensorRT-LLM backend's key.

    `vocab_size`: how many logits the model has, for requests with a bias.
    """
    message = service_pb2.ModelInferRequest(model_name=model, id=call_id)
    # Without it Triton drops an empty final response, and the stream has no end.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, shape, content in _tensors(request, vocab_size):
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    for name in OUTPUTS:
        message.outputs.add(name=name)
    return message


def _tensors(request: GenerateRequest, vocab_size: int) -> Iterator[Tensor]:
    prompt, params = request.prompt, request.params
    yield "input_ids", "INT32", (1, len(prompt)), struct.pack(f"<{len(prompt)}i", *prompt.token_ids)
    yield _int32("input_lengths", len(prompt))
    yield _int32("request_output_len", params.max_tokens)
    yield "streaming", "BOOL", (1, 1), b"\1"
    yield from _sampling(params)
    yield from _penalties(params)
    if params.logit_bias:
        yield "embedding_bias", "FP32", (1, vocab_size), _dense_bias(params.logit_bias, vocab_size)
    if params.guide is not None:
        yield from _guide(ANY_OBJECT if params.guide.kind is GuideKind.JSON else params.guide)
    if (end_id := _end_id(request)) is not None:  # without end_id the engine ignores the model's end token
        yield _int32("end_id", end_id)
    if min_tokens := params.binding_min_tokens:
        # The engine masks end_id only. A stop word would end the answer too early, so TensorReader looks for those.
        yield _int32("min_tokens", min_tokens)
    elif stop_ids := _stop_ids(request):
        yield "stop_words_list", "INT32", (1, 2, len(stop_ids)), word_list([(token_id,) for token_id in stop_ids])


def _sampling(params: SamplingParams) -> Iterator[Tensor]:
    if params.temperature == 0:
        # In older TensorRT-LLM releases a temperature of 0 gave wrong answers, also to others of the batch.
        yield _int32("runtime_top_k", 1)
        return
    yield _float32("temperature", params.temperature)
    yield _float32("runtime_top_p", params.top_p)  # always sent: without top_k and top_p the engine is greedy
    if params.top_k:
        yield _int32("runtime_top_k", params.top_k)
    # Always sent: without it every request samples with seed 0.
    seed = randbits(63) if params.seed is None else params.seed & UINT64_MASK
    yield "seed", "UINT64", (1, 1), struct.pack("<Q", seed)


def _penalties(params: SamplingParams) -> Iterator[Tensor]:
    if params.repetition_penalty != 1:
        yield _float32("repetition_penalty", params.repetition_penalty)
    if params.presence_penalty:
        yield _float32("presence_penalty", params.presence_penalty)
    if params.frequency_penalty:
        yield _float32("frequency_penalty", params.frequency_penalty)


def _dense_bias(biases: Sequence[tuple[int, float]], vocab_size: int) -> bytes:
    """Returns a bias for every logit: TensorRT-LLM accepts no other length. Drops ids that have no logit."""
    dense = bytearray(BIAS.size * vocab_size)
    for token_id, bias in biases:
        if token_id < vocab_size:
            BIAS.pack_into(dense, BIAS.size * token_id, bias)
    return bytes(dense)


def _guide(guide: Guide) -> Iterator[Tensor]:
    yield _text("guided_decoding_guide_type", guide.kind)
    yield _text("guided_decoding_guide", guide.text)


def _text(name: str, value: str) -> Tensor:
    content = value.encode()
    return name, "BYTES", (1, 1), struct.pack("<I", len(content)) + content


def _int32(name: str, value: int) -> Tensor:
    return name, "INT32", (1, 1), struct.pack("<i", value)


def _float32(name: str, value: float) -> Tensor:
    return name, "FP32", (1, 1), struct.pack("<f", value)


def _end_id(request: GenerateRequest) -> int | None:
    return None if request.params.ignore_eos or not request.eos_token_ids else request.eos_token_ids[0]


def _stop_ids(request: GenerateRequest) -> tuple[int, ...]:
    """Returns the ids that end an answer besides end_id; the engine takes one end_id only."""
    other_ends = () if request.params.ignore_eos else request.eos_token_ids[1:]
    end_id = _end_id(request)
    unique = dict.fromkeys((*other_ends, *request.params.stop_token_ids))
    return tuple(token_id for token_id in unique if token_id != end_id)


def word_list(words: Sequence[Sequence[int]]) -> bytes:
    """Returns a word list of TensorRT-LLM, [2, N]: a row of all ids, then a row of each word's end, padded with -1."""
    token_ids = [token_id for word in words for token_id in word]
    ends, end = [], 0
    for word in words:
        end += len(word)
        ends.append(end)
    padding = [PAD_OFFSET] * (len(token_ids) - len(ends))
    return struct.pack(f"<{2 * len(token_ids)}i", *token_ids, *ends, *padding)


class TensorReader:
    """Reads one streamed answer; pass it the responses. Infers why the answer ended, which the engine does not report.

    `must_abort`: the answer ended at a stop token that the engine does not know, so the engine has to be aborted.

    Usually two responses differ only in the id, four bytes of some two hundred. Once their place is known, a message
    that is equal everywhere else is not parsed, which saves most of the cost of reading.
    """

    def __init__(self, peer: str, request: GenerateRequest, id_limit: int = LARGEST_VOCABULARY) -> None:
        """`id_limit`: an upper bound of the answer's ids."""
        self._peer = peer
        self._id_limit = id_limit
        self._needs = request.needs
        self._if_refused = None if request.params.guide is None else guide_error(request)
        self._max_tokens = request.params.max_tokens
        self._min_tokens = request.params.binding_min_tokens
        self.must_abort = False
        self._end_id = _end_id(request)
        self._stop_ids = frozenset(_stop_ids(request))
        self._total = 0
        self._last_id: int | None = None
        self._before, self._after = b"", b""  # the bytes before and after the id
        self._id_at, self._size = 0, -1
        self._layouts_left = MAX_LAYOUTS

    def read(self, messages: Sequence[bytes]) -> tuple[Sequence[int], End | None]:
        """Returns the new ids of serialized responses that arrived together, and how generation ended, or None."""
        if len(messages) > 1:
            return self._read_all(messages)
        message = messages[0]
        if len(message) != self._size or not (message.startswith(self._before) and message.endswith(self._after)):
            return self._parse(message)
        token_ids: Sequence[int] = ID.unpack_from(message, self._id_at)
        if not 0 <= token_ids[0] < self._id_limit:
            return self._parse(message)  # which returns the error
        if self._min_tokens:
            return self._accept(token_ids, is_final=False)
        self._total += 1
        self._last_id = token_ids[0]
        return token_ids, None

    def _read_all(self, messages: Sequence[bytes]) -> tuple[Sequence[int], End | None]:
        token_ids: list[int] = []
        for message in messages:
            new_ids, end = self.read((message,))
            token_ids += new_ids
            if end is not None:
                return token_ids, end
        return token_ids, None

    def _parse(self, message: bytes) -> tuple[Sequence[int], End | None]:
        try:
            response = service_pb2.ModelStreamInferResponse.FromString(message)
        except DecodeError:
            return (), BackendProtocolError(f"{self._peer} sent a message that cannot be read")
        token_ids, end = self.feed(response)
        if len(token_ids) == 1 and end is None and self._layouts_left:
            self._learn_layout(message, response)
        return token_ids, end

    def _learn_layout(self, message: bytes, response: StreamResponse) -> None:
        """Remember the layout of a message with one id and no end. `response`: the parsed message."""
        self._layouts_left -= 1
        at = _find_id(message, response)
        if at is not None:
            self._id_at, self._size = at, len(message)
            self._before, self._after = message[:at], message[at + ID_BYTES :]

    def feed(self, response: StreamResponse) -> tuple[Sequence[int], End | None]:
        """Returns the response's new ids, and how generation ended, or None."""
        if response.error_message:
            refused = need_refused(self._peer, response.error_message, self._needs)
            return (), refused or inband_error(self._peer, response.error_message, self._if_refused)
        try:
            token_ids = _new_ids(response.infer_response)
        except (ValueError, LookupError, struct.error):
            return (), BackendProtocolError(f"{self._peer} sent output_ids that cannot be read")
        if not all(0 <= token_id < self._id_limit for token_id in token_ids):
            return (), BackendProtocolError(f"{self._peer} sent a token that the model does not have")
        return self._accept(token_ids, is_final=_is_final(response.infer_response))

    def _accept(self, token_ids: Sequence[int], *, is_final: bool) -> tuple[Sequence[int], End | None]:
        if self._min_tokens and (kept := self._count_to_stop(token_ids)):
            self.must_abort = not is_final
            return token_ids[:kept], FinishReason.STOP
        if token_ids:
            self._total += len(token_ids)
            self._last_id = token_ids[-1]
        return self._add_end(token_ids) if is_final else (token_ids, None)

    def _count_to_stop(self, token_ids: Sequence[int]) -> int:
        """Returns how many of these ids belong to the answer if a stop token among them ends it; else 0."""
        for position, token_id in enumerate(token_ids, start=1):
            if token_id in self._stop_ids and self._total + position >= self._min_tokens:
                return position
        return 0

    def _add_end(self, token_ids: Sequence[int]) -> tuple[Sequence[int], End]:
        if self._last_id in self._stop_ids:  # stop words are part of the output
            return token_ids, FinishReason.STOP
        if self._total >= self._max_tokens or self._end_id is None:
            return token_ids, FinishReason.LENGTH
        # The answer ended early without a stop word, so by end_id, which the engine neither returns nor counts.
        return (*token_ids, self._end_id), FinishReason.STOP


def _new_ids(response: Any) -> Sequence[int]:  # Any: an untyped protobuf message
    """Returns the ids of one response: with streaming and one beam, the ids since the previous response."""
    raw = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=True))
    if not raw:
        return ()
    ids, length = raw["output_ids"], int.from_bytes(raw["sequence_length"], "little", signed=True)
    if length == 1 and len(ids) == 4:  # nearly all responses
        return (int.from_bytes(ids, "little", signed=True),)
    return struct.unpack(f"<{length}i", ids[: 4 * length])  # the bytes beyond the length are padding


def _find_id(message: bytes, response: StreamResponse) -> int | None:
    """Returns the index of the one id of output_ids in the message; None if it is not certain.

    It is certain if the message parses to another id, and else to the same, when these bytes are replaced.
    """
    names = [output.name for output in response.infer_response.outputs]
    index = names.index("output_ids")
    content = response.infer_response.raw_output_contents[index]
    if len(content) != ID_BYTES:  # padded
        return None
    other = bytes(byte ^ 0xFF for byte in content)
    at = message.rfind(content)
    while at >= 0:
        try:
            probe = service_pb2.ModelStreamInferResponse.FromString(message[:at] + other + message[at + ID_BYTES :])
        except DecodeError:
            probe = None
        if probe is not None and list(probe.infer_response.raw_output_contents)[index : index + 1] == [other]:
            probe.infer_response.raw_output_contents[index] = content
            if probe == response:
                return at
        at = message.rfind(content, 0, at + ID_BYTES - 1)
    return None


def _is_final(response: Any) -> bool:  # Any: an untyped protobuf message
    parameters = response.parameters
    return "triton_final_response" in parameters and parameters["triton_final_response"].bool_param


# In-band errors carry a text and no code (the gRPC status stays OK), so only the text counts. The first match wins.
INBAND_ERRORS: tuple[tuple[tuple[str, ...], type[GatewayError], str], ...] = (
    (
        ("is not found", "has no available versions", "is not ready"),
        BackendUnavailable,
        "{peer} does not serve the model at the moment",
    ),
    (("shutting down", "is exiting"), BackendUnavailable, "{peer} is shutting down"),
    (("the engine failed:",), BackendUnavailable, "{peer} has lost its engine"),
    (("exceeds maximum queue size", "maximum queue size of", "request timeout expired"), BackendFull, "{peer} is full"),
    (
        ("exceeds maximum input length", "maximum sequence length", "max_seq_len", "maximum context length"),
        ContextLengthExceeded,
        "the prompt is too long for {peer}",
    ),
    (
        ("temperature is not supported by this engine",),
        InvalidRequest,
        "{peer} only answers greedily: 'temperature' must be 0",
    ),
)


# The beginning of Triton's error for a tensor that the model does not declare, and of TensorRT-LLM's and our Python
# model's for a tensor that the engine does not support. Only the beginning counts: the rest may quote the request.
UNDECLARED = r"(?:\[request id: [^\]]*\] )?unexpected inference input '(\w+)'"
UNFOLLOWED = r"(\w+) (?:is not supported|/ )"
REFUSED_TENSOR = re.compile(f"{UNDECLARED}|{UNFOLLOWED}")
NEED_OF_TENSOR = {
    "repetition_penalty": Need.PENALTIES,
    "presence_penalty": Need.PENALTIES,
    "frequency_penalty": Need.PENALTIES,
    "min_tokens": Need.MIN_TOKENS,
    "min_length": Need.MIN_TOKENS,  # the executor's name
    "embedding_bias": Need.LOGIT_BIAS,
}


def need_refused(peer: str, text: str, needs: Needs) -> NeedRefused | None:
    """Returns the error if `text`, an error_message, refuses one of the request's needs; None for any other."""
    refused = REFUSED_TENSOR.match(text)
    if refused is None:
        return None
    need = NEED_OF_TENSOR.get(refused[1] or refused[2])
    if need is None or need not in needs:
        return None
    return NeedRefused(f"{needs[need]!r} is not supported by the engine of {peer}.", need=need, param=needs[need])


# Words in the errors of TensorRT-LLM, its grammar libraries and the reference engine for a guide that they refuse.
GUIDE_WORDS = ("guided decoding error", "grammar", "ebnf", "schema", "regex", "json")


def inband_error(peer: str, text: str, if_refused: GatewayError | None = None) -> GatewayError:
    """Returns the error for an error_message. The text itself goes only to the debug log.

    `if_refused`: the error if the engine refuses the request itself, for requests that only an engine can check.
    """
    logger.debug("%s reported: %s", peer, text[:2000])
    lowered = text.lower()
    for parts, error, message in INBAND_ERRORS:
        if any(part in lowered for part in parts):
            return error(message.format(peer=peer))
    if if_refused is not None and any(word in lowered for word in GUIDE_WORDS):
        return if_refused
    return BackendError(f"{peer} failed")

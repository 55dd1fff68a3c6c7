"""The nouns that cross the gateway's doors, and the protocols of its seams.

A request changes type at every door: OpenAI JSON -> GenerateRequest -> Lease -> token ids -> text -> frames -> bytes.
Knows nothing of HTTP, gRPC, tokenizers or time; imports only the error taxonomy and what a header is.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from gateway.errors import GatewayError
from gateway.header import Lines


class FinishReason(StrEnum):
    """Why generation ended, in OpenAI's words. A client that leaves has none."""

    STOP = "stop"  # an end or stop token, or a stop string
    LENGTH = "length"  # max_tokens were generated


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a whole rendered prompt, special tokens included; never empty."""

    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError("a prompt holds at least one token")

    def __len__(self) -> int:
        return len(self.token_ids)


class GuideKind(StrEnum):
    """What a guide's text is, in the words of TensorRT-LLM's `guided_decoding_guide_type`."""

    JSON = "json"  # any JSON value; no text
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "ebnf_grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """What an answer's text must match: the engine samples nothing else."""

    kind: GuideKind
    text: str = ""


class Need(StrEnum):
    """What a request asks of a backend beyond plain generation, and a backend declares that it can do."""

    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    PENALTIES = "penalties"
    MIN_TOKENS = "min_tokens"
    GUIDE = "guided_decoding"
    PRIORITY = "priority"
    RELAY = "relay"  # the client's own body goes on to it


# Which field of the request asks for each.
Needs: TypeAlias = Mapping[Need, str]


class _NoNeeds(dict[Need, str]):
    """Never written to. By itself no mapping may be a dataclass's default, and a factory would cost every request."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # dict has None there


NO_NEEDS: Needs = _NoNeeds()


class TokenLogprob(NamedTuple):
    """One token's log-probability in the model's own distribution; None for a prompt's first token, which has none.

    `top`: the most probable tokens there and their log-probabilities, the first one first.
    """

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. Defaults are OpenAI's; ranges are checked in api/, so every value here is valid.

    `seed` None means: unseeded, the backend draws one. `top_k` 0 means: off. `logprobs`, `prompt_logprobs`: how many of
    the most probable tokens to tell beside each one of the answer's or the prompt's; None means: no log-probabilities.
    `priority`: lower goes first. Stop strings are not here: engines see ids only, text is matched in language/.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id and what is added to its logit, -100 to 100
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Guide | None = None
    priority: int = 0

    @property
    def binding_min_tokens(self) -> int:
        """What to tell an engine of `min_tokens`: nothing when no token can end the answer before max_tokens.

        Engines differ in what they mask then: vLLM its end token all the same, TensorRT-LLM without an end_id none, and
        one request would get two answers.
        """
        can_end_early = bool(self.stop_token_ids) or not self.ignore_eos
        return self.min_tokens if can_end_early else 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation, ready for any backend: the only thing a policy or a backend sees of a client's request.

    `eos_token_ids`: the model's end tokens, the principal one first. `pin`: the backend the caller insists on.
    `run`: the load-test run that sent it, if any. `needs`: what only some backends can do. `sequences`: how many
    generations are placed with this one's lease, itself included: the choices of one request go to one backend.
    """

    request_id: str
    model: str
    prompt: Prompt
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    pin: str | None = None
    run: str | None = None
    needs: Needs = NO_NEEDS
    sequences: int = 1


class Load(NamedTuple):
    """One backend as a policy sees it: leases held now, and whether it may be chosen."""

    in_flight: int
    is_ready: bool


@dataclass(frozen=True, slots=True)
class Route:
    """A decision: the chosen backend's name, and the reason in one line for `x-crossover-reason`."""

    backend: str
    reason: str


class Sink(Protocol):
    """Where a backend delivers an answer: `tokens` any number of times, then `finish` or `fail` exactly once.

    `scores` comes only where log-probabilities were asked for: with `prompt_logprobs` for the whole prompt before
    anything else, in as many calls as it takes, with `logprobs` before each `tokens`, an entry for each of its ids.

    All are plain calls made from the event loop, never from inside `Backend.start`, and never after
    `Call.cancel`. They must not block or raise.
    """

    def tokens(self, token_ids: Sequence[int]) -> None: ...

    def scores(self, entries: Sequence[TokenLogprob]) -> None: ...

    def finish(self, reason: FinishReason) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


class Call(Protocol):
    """One generation under way on a backend."""

    def cancel(self) -> None:
        """Stop it and free everything it holds; idempotent, and harmless after the end. The sink hears nothing more."""
        ...


class Backend(Protocol):
    """A server that answers requests for a model; readiness is asked by routing/health."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Need]:
        """What it can do beyond plain generation, as far as is known at the moment."""
        ...

    async def is_ready(self) -> bool:
        """Ask the server whether it can generate now; False on any failure, never raises, bounded in time."""
        ...

    async def aclose(self) -> None:
        """Cancel every call and release connections."""
        ...


class TokenBackend(Backend, Protocol):
    """A server that turns prompt ids into token ids.

    Contract for every adapter (tests/backends/test_contract.py):
    - the end token that stops an answer is delivered as its last id on every backend, so ids alone give exact usage;
    - lost, refused or not ready before the first token: `BackendUnavailable`; after it: `BackendError`;
    - foreign exceptions never leave the adapter.
    """

    def start(self, request: GenerateRequest, sink: Sink) -> Call: ...


@dataclass(slots=True)
class RelayRequest:
    """A client's request as it came, for a server that speaks OpenAI's API itself; `path` has the query string.

    `lines`: the header fields that go on with it. `pin`, `run` and `needs` as in GenerateRequest. `barred`: the
    backends that it may not go to.
    """

    request_id: str
    model: str
    path: bytes
    lines: Lines
    body: bytes
    pin: str | None = None
    run: str | None = None
    needs: Needs = NO_NEEDS
    sequences: int = 1
    barred: frozenset[str] = frozenset()


class RelaySink(Protocol):
    """Where a relay backend delivers an answer as it came: `begin`, `write`s, then `finish`; or `fail` at any point.

    All are plain calls made from the event loop, never after `Call.cancel`. `takes_chunks`: whether `write` takes the
    body in the HTTP chunks it came in.
    """

    @property
    def takes_chunks(self) -> bool: ...

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool) -> None:
        """`lines` are header fields as they go on the wire. `length` None: not known before the end.

        `is_framed`: `write` is given HTTP chunks, the last included.
        """
        ...

    def write(self, data: bytes) -> None: ...

    def splice(self) -> Callable[[bytes], None]:
        """A `write` for the chunks that follow the first, as near to the client as can be.

        It raises RuntimeError once the client's connection is closed; `lost` wants to know of it.
        """
        ...

    def lost(self) -> None: ...

    def finish(self, data: bytes = b"") -> None:
        """The answer is complete with `data`, which is not in chunks."""
        ...

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        """`may_append`: the answer is an event stream, cut where an error event may follow."""
        ...


class RelayOutcome(Protocol):
    """What was seen of a relayed answer on its way; times on the clock of time.monotonic, None: nothing came.

    Token counts are the server's own, from its usage object; 0 when it sent none.
    """

    first: float | None
    last: float
    events: int
    status: int

    @property
    def usage(self) -> tuple[int, int]:
        """Prompt and completion tokens."""
        ...

    @property
    def finish_reason(self) -> str | None: ...


class RelayCall(Call, RelayOutcome, Protocol):
    """One relayed answer under way."""

    def pause(self) -> None:
        """Hold the server up: the client takes no more at the moment."""
        ...

    def resume(self) -> None: ...

    def fail(self, error: GatewayError) -> None:
        """End it with an error that is not the server's; the sink hears it, and nothing after it."""
        ...


class RelayBackend(Backend, Protocol):
    """A server that speaks OpenAI's API; its answers go to the client unchanged.

    - lost, refused or not ready before its answer began, or full: `BackendUnavailable`; after that: `BackendLost`;
    - an error that it reports as the first event of a stream comes before `begin`;
    - foreign exceptions never leave the adapter.
    """

    def relay(self, request: RelayRequest, sink: RelaySink) -> RelayCall: ...


class Placeable(Protocol):
    """What routing sees of a request."""

    @property
    def request_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def pin(self) -> str | None: ...
    @property
    def run(self) -> str | None: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def sequences(self) -> int: ...


@dataclass(frozen=True, slots=True)
class State:
    """What a policy remembers between choices: its side, since when (monotonic seconds), and its version."""

    side: str
    since: float
    version: int


class Policy(Protocol):
    """Which backend gets a request: a pure function of what it is handed, `now` in monotonic seconds.

    `loads` holds every backend of the model; its counts do not yet include the request being placed. At least one
    backend is ready when it is called. The returned state replaces the old one in the same step that counts the lease.
    `start` begins on `side`, where the policy before it stood, if this one knows that side.
    """

    kind: ClassVar[str]

    def start(self, version: int, now: float, side: str | None = None) -> State: ...

    def choose(
        self, request: Placeable, loads: Mapping[str, Load], state: State, now: float
    ) -> tuple[Route, State]: ...

    def keys(self) -> Mapping[str, object]:
        """Its keys as in crossover.yaml, all but `kind`."""
        ...

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        """(key, what is wrong with it), for every contradiction in itself or with a model's backends."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Its keys that /metrics shows, as `crossover_policy_<key>`."""
        ...

    def max_in_flight(self, backend: str) -> int | None:
        """How many generations an engine has to run at once for this policy. None: it sets no bound."""
        ...

"""The types that pass between the gateway's rooms, and the protocols of its seams.

A request changes type between rooms: OpenAI JSON -> GenerateRequest -> Lease -> token ids -> text -> frames -> bytes.
Knows nothing of HTTP, gRPC, tokenizers or time; imports only the error taxonomy and the type of header lines.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

from gateway.errors import GatewayError
from gateway.header import Lines


class FinishReason(StrEnum):
    """Why generation ended, in OpenAI's words. A cancelled answer has no FinishReason."""

    STOP = "stop"  # an end or stop token, or a stop string
    LENGTH = "length"  # max_tokens were generated


@dataclass(frozen=True, slots=True)
class Prompt:
    """The token ids of a whole rendered prompt, with its special tokens; never empty."""

    token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.token_ids:
            raise ValueError("a prompt holds at least one token")

    def __len__(self) -> int:
        return len(self.token_ids)


class GuideKind(StrEnum):
    """The kind of a guide's text, in the words of TensorRT-LLM's `guided_decoding_guide_type`."""

    JSON = "json"  # any JSON value; no text
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "ebnf_grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """A form that an answer's text has to match: the engine samples nothing else."""

    kind: GuideKind
    text: str = ""


class Need(StrEnum):
    """A feature beyond plain generation that a request may ask for and a backend may declare."""

    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    LOGIT_BIAS = "logit_bias"
    MIN_P = "min_p"
    PENALTIES = "penalties"
    MIN_TOKENS = "min_tokens"
    GUIDE = "guided_decoding"
    PRIORITY = "priority"
    CACHE_SALT = "cache_salt"
    RELAY = "relay"  # the backend takes the client's own body


# For each need, the field of the request that asks for it.
Needs: TypeAlias = Mapping[Need, str]


class _NoNeeds(dict[Need, str]):
    """Always empty. Hashable, since a dataclass's default has to be; a factory would cost time at every request."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # dict sets it to None


NO_NEEDS: Needs = _NoNeeds()


class TokenLogprob(NamedTuple):
    """One token's log-probability in the model's own distribution; None for the first token of a prompt.

    `top`: the most probable tokens at its position and their log-probabilities, the most probable first.
    """

    token_id: int
    logprob: float | None
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample tokens. Defaults are OpenAI's; gateway/openai checks the ranges, so every value here is valid.

    `seed` None: the backend draws one. `top_k` 0: off. `logprobs`, `prompt_logprobs`: how many of the most probable
    tokens to return beside each token of the answer or the prompt; None: no log-probabilities. `priority`: lower goes
    first. Stop strings are not here: engines see only ids, and gateway/language matches text.
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
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, and the number added to its logit, -100 to 100
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guide: Guide | None = None
    priority: int = 0

    @property
    def binding_min_tokens(self) -> int:
        """The `min_tokens` to send to an engine: 0 if no token can end the answer before max_tokens.

        In that case engines mask different tokens, vLLM its end token and TensorRT-LLM without an end_id none, and the
        same request would get two different answers.
        """
        can_end_early = bool(self.stop_token_ids) or not self.ignore_eos
        return self.min_tokens if can_end_early else 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation, ready for any backend: policies and backends see nothing else of a client's request.

    `eos_token_ids`: the model's end tokens, the principal one first. `pin`: the backend that the client requires.
    `run`: the load-test run that sent it, if any. `needs`: features that only some backends have. `sequences`: how many
    generations share this one's lease, itself included: all choices of one request go to one backend. `cache_salt`:
    only requests with the same salt may share a cached prefix.
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
    cache_salt: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def max_tokens(self) -> int:
        return self.params.max_tokens

    @property
    def priority(self) -> int:
        return self.params.priority


class Capacity(NamedTuple):
    """How many generations an engine runs at once, and how many prompt tokens may wait to be prefilled there."""

    in_flight: float
    prefill_tokens: float


class Load(NamedTuple):
    """One backend as a policy sees it: how many leases it has now, and whether it may be chosen.

    `in_flight` counts every choice of a request; `brief` of these are choices beyond the first and beyond their mean of
    the last minute. It is negative where there were more of late.
    """

    in_flight: int
    is_ready: bool
    brief: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """A decision: the chosen backend's name, and the reason in one line for `x-crossover-reason`."""

    backend: str
    reason: str


class Sink(Protocol):
    """Receives an answer from a backend: `tokens` any number of times, then `finish` or `fail` exactly once.

    `scores` is called only if log-probabilities were asked for: with `prompt_logprobs` for the whole prompt before
    everything else, in any number of calls; with `logprobs` before each `tokens`, with an entry for each of its ids.

    All are plain calls from the event loop, never from inside `TokenBackend.start`, and never after `Call.cancel`. They
    must not block or raise.
    """

    def tokens(self, token_ids: Sequence[int]) -> None: ...

    def scores(self, entries: Sequence[TokenLogprob]) -> None: ...

    def finish(self, reason: FinishReason) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


class Call(Protocol):
    """One running generation on a backend."""

    def cancel(self) -> None:
        """Stops it and releases all it holds; idempotent, harmless after the end. Its sink is not called again."""
        ...


class CacheUse(NamedTuple):
    """Prompt tokens that an engine has reported on, and how many of them its prefix cache held. Older ones fade."""

    queried: float = 0.0
    found: float = 0.0

    def add(self, queried: int, found: int) -> "CacheUse":
        """Returns it with one prompt more."""
        return CacheUse(self.queried * CACHE_FADING + queried, self.found * CACHE_FADING + found)


CACHE_FADING = 0.99  # what one more prompt leaves of the weight of those before
NO_CACHE_USE = CacheUse()


class Backend(Protocol):
    """A server that answers requests for a model; routing/health probes its readiness."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Need]:
        """The needs that the server meets, as far as is known at the moment."""
        ...

    @property
    def cache_use(self) -> CacheUse:
        """What the server has reported of its prefix cache, measurements left out; NO_CACHE_USE if it reports none."""
        ...

    async def is_ready(self) -> bool:
        """Asks the server whether it can generate now; False on any failure, never raises, bounded in time."""
        ...

    async def aclose(self) -> None:
        """Fails every call and releases the connections."""
        ...


@runtime_checkable
class TokenBackend(Backend, Protocol):
    """A server that turns prompt ids into token ids.

    Contract for every adapter (tests/backends/test_contract.py):
    - the end token that stops an answer is delivered as its last id, so that usage is the exact count of ids;
    - if the server is lost, refuses or is not ready before the first token, the call fails with `BackendUnavailable`;
      after the first token with `BackendError`;
    - the adapter translates every foreign exception.
    """

    def start(self, request: GenerateRequest, sink: Sink) -> Call: ...

    def renew(self) -> None:
        """Begins new calls on fresh connections, after one that had no answer: its connection may be dead."""
        ...


@dataclass(slots=True)
class RelayRequest:
    """A client's request for a server that speaks OpenAI's API itself; `path` has the query string.

    `lines`: the header fields to pass on. `pin`, `run` and `needs`: as in GenerateRequest. `barred`: the backends that
    must not get the request. `prompt_tokens` and `max_tokens`: not counted, since only the server reads the body.
    `priority`: lower goes first.
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
    prompt_tokens: int = 0
    max_tokens: int | None = None
    priority: int = 0


Placeable: TypeAlias = GenerateRequest | RelayRequest  # a request as routing sees it


class RelaySink(Protocol):
    """Receives an unchanged answer from a relay backend: `begin`, `write`s, then `finish`; or `fail` at any point.

    All are plain calls from the event loop, never after `Call.cancel`. `takes_chunks`: whether `write` accepts the body
    with its HTTP chunk framing.
    """

    @property
    def takes_chunks(self) -> bool: ...

    def begin(self, status: int, lines: Sequence[bytes], length: int | None, *, is_framed: bool) -> None:
        """Begins the answer. `lines`: header fields as they are on the wire. `length` None: not known before the end.

        `is_framed`: `write` receives HTTP chunks, including the last chunk.
        """
        ...

    def write(self, data: bytes) -> None: ...

    def splice(self) -> Callable[[bytes], None]:
        """Returns a `write` for the chunks after the first one, with as few calls as possible before the transport.

        It raises RuntimeError when the client's connection is closed; then the backend calls `write_failed`.
        """
        ...

    def write_failed(self) -> None: ...

    def finish(self, data: bytes = b"") -> None:
        """The answer is complete after `data`, which has no chunk framing."""
        ...

    def fail(self, error: GatewayError, *, may_append: bool = False) -> None:
        """Ends with an error. `may_append`: the answer is an event stream, and ends where an error event may follow."""
        ...


class RelayOutcome(Protocol):
    """Measurements of a relayed answer. Times are time.monotonic's; `first` None: no byte of a body arrived.

    Token counts are the server's own, from its usage object; 0 if it sent none.
    """

    first: float | None
    last: float
    events: int
    status: int

    @property
    def usage(self) -> tuple[int, int]:
        """The numbers of prompt tokens and of completion tokens."""
        ...

    @property
    def finish_reason(self) -> str | None: ...


class RelayCall(Call, RelayOutcome, Protocol):
    """One running relayed answer. `size`: the bytes of JSON so far, if it comes whole."""

    size: int

    def pause(self) -> None:
        """Stops reading from the server: the client reads too slowly at the moment."""
        ...

    def resume(self) -> None: ...

    def fail(self, error: GatewayError) -> None:
        """Ends the answer with an error that is not the server's. The sink receives `fail`, and nothing after it."""
        ...


class RelayBackend(Backend, Protocol):
    """A server that speaks OpenAI's API; its answers go to the client unchanged.

    - If the server is lost, refuses, is full or is not ready before its answer began, the call fails with
      `BackendUnavailable`; after that with `BackendLost`.
    - An error in the first event of a stream is reported before `begin`.
    - The adapter translates every foreign exception.
    """

    def relay(self, request: RelayRequest, sink: RelaySink) -> RelayCall: ...


@dataclass(frozen=True, slots=True)
class State:
    """A policy's memory between choices: its side, since when (monotonic seconds), and its version.

    `words`: what else a policy remembers, STATE_WORDS numbers at most, which only that policy packs and reads.
    """

    side: str
    since: float
    version: int
    words: tuple[float, ...] = ()


STATE_WORDS = 96

Kept: TypeAlias = Mapping[str, object]  # what of a policy's state outlives a restart, as JSON values


class Arrivals(NamedTuple):
    """How many requests had arrived at a time, in monotonic seconds, since counting began."""

    at: float
    total: int


class FirstToken(NamedTuple):
    """A first token of an engine's: when it came, in monotonic seconds, and how many tokens were prefilled for it."""

    at: float
    prompt_tokens: int


class BackendDemand(NamedTuple):
    """One backend at an instant, in sequences and tokens.

    `fixed` of what is in flight cannot run elsewhere, nor can `fixed_share` of all that arrives. `decoding` have had a
    token from it, and hold `held` tokens of context. `context`: the tokens of those that may move, which another engine
    would prefill. `generated`: all tokens since counting began. `firsts`: of the time since the beat before. `foreign`:
    sequences in flight that do not steer, or whose tokens nobody counts. `cached`: which part of its prompts' tokens
    its prefix cache holds, of late and in the mean; the other engines' where it reports none.
    """

    in_flight: int
    fixed: int = 0
    fixed_share: float = 0.0
    decoding: int = 0
    held: int = 0
    context: int = 0
    generated: int = 0
    firsts: tuple[FirstToken, ...] = ()
    foreign: int = 0
    cached: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The load that a plan has to serve.

    `arrivals`: samples of the last seconds, the oldest first; at least one. `prompts`: the lengths of recent prompts,
    in tokens, whole. `answer_tokens`: an answer's mean length; both are empty and 0 while none is known.
    """

    arrivals: Sequence[Arrivals]
    backends: Mapping[str, BackendDemand]
    prompts: Sequence[float]
    answer_tokens: float

    @property
    def in_flight(self) -> int:
        return sum(backend.in_flight for backend in self.backends.values())


class MoveTerms(NamedTuple):
    """How many tokens an answer has to have still to come, so that it gains by a move, and how many tokens a second the
    engine to go to prefills. The defaults: nothing is known of the engines.
    """

    min_left: int = 16
    tokens_per_s: float = 50_000.0


class Leaving(NamedTuple):
    """Backends that running answers should leave, and on which terms."""

    backends: frozenset[str]
    terms: MoveTerms


class Policy(Protocol):
    """Chooses the backend of a request: a pure function of its arguments, `now` in monotonic seconds.

    `loads` holds every backend of the model, without the request being placed; at least one of them is ready. The
    returned state replaces the old one in the same step that counts the lease. `start` begins on `side`, the previous
    policy's side, if this policy has it. A policy defines `start`, `choose`, and what it does otherwise than here.
    """

    kind: ClassVar[str]

    def start(self, version: int, now: float, side: str | None = None) -> State: ...

    def choose(
        self, request: Placeable, loads: Mapping[str, Load], state: State, now: float
    ) -> tuple[Route, State]: ...

    @property
    def plans(self) -> bool:
        """Whether `plan` is of use: demand is counted only then."""
        return False

    @property
    def splits(self) -> bool:
        """Whether it uses several backends at once, so that `State.side` is not where requests go."""
        return False

    def plan(self, demand: Demand, state: State, now: float) -> State:
        """Returns the state that serves the demand best; called many times a second, also when nothing arrives."""
        return state

    def find_kept(self, state: State) -> Kept | None:
        """Returns what of the state outlives a restart; None: nothing."""
        return None

    def resume(self, state: State, kept: Kept) -> State:
        """Returns the state with what was kept of an earlier one. Raises ValueError for what is not this policy's."""
        return state

    def keys(self) -> Mapping[str, object]:
        """Returns its keys as in crossover.yaml, all but `kind`."""
        return {}

    def problems(self, backends: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yields (key, what is wrong with it) for every contradiction in the policy or with a model's backends."""
        yield from ()

    def find_left(self, state: State) -> Collection[str]:
        """Returns the backends that running answers should leave for another one in this state."""
        return ()

    def find_terms(self, state: State, left: Collection[str], in_flight: int) -> MoveTerms:
        """Returns on which terms answers go elsewhere from the backends in `left`; `in_flight` are under way in all."""
        return MoveTerms()

    def readings(self, state: State) -> Mapping[str, Mapping[str, float]]:
        """Returns by backend what the policy has found out about it, by name, for operators; nothing without a model.

        Where there is nothing to read of one yet, it has no entry.
        """
        return {}

    def gauges(self) -> Mapping[str, float]:
        """Returns the keys that /metrics shows, as `crossover_policy_<key>`, and their values."""
        return {}

    def find_step_s(self, backend: str, state: State, streams: int, waiting: float) -> float | None:
        """Returns the seconds of a step beside so many streams that prefills all tokens that wait; None: unknown."""
        return None

    def max_in_flight(self, backend: str) -> int | None:
        """Returns how many generations an engine has to run at once for this policy; None: it sets no bound."""
        return None

    def find_capacity(self, backend: str, state: State) -> Capacity | None:
        """Returns how much an engine takes at once; None: unknown."""
        return None

    @property
    def spills(self) -> bool:
        """Whether requests that its choice has no room for may go to another backend."""
        return True

"""The nouns that cross the gateway's doors, and the protocols of its seams.

A request changes type at every door: OpenAI JSON -> GenerateRequest -> Lease -> token ids -> text -> frames -> bytes.
Knows nothing of HTTP, gRPC, tokenizers or time; imports only the error taxonomy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gateway.errors import GatewayError


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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. Defaults are OpenAI's; ranges are checked in api/, so every value here is valid.

    `seed` None means: unseeded, the backend draws one. `top_k` 0 means: off. Stop strings are not here: engines see ids
    only, text is matched in language/.
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
    `run`: the load-test run that sent it, if any.
    """

    request_id: str
    model: str
    prompt: Prompt
    params: SamplingParams
    eos_token_ids: tuple[int, ...]
    pin: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
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

    All three are plain calls made from the event loop, never from inside `Backend.start`, and never after
    `Call.cancel`. They must not block or raise.
    """

    def tokens(self, token_ids: Sequence[int]) -> None: ...

    def finish(self, reason: FinishReason) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


class Call(Protocol):
    """One generation under way on a backend."""

    def cancel(self) -> None:
        """Stop it and free everything it holds; idempotent, and harmless after the end. The sink hears nothing more."""
        ...


class Backend(Protocol):
    """A server that turns prompt ids into token ids. One verb; readiness is asked by routing/health.

    Contract for every adapter (tests/backends/test_contract.py):
    - the end token that stops an answer is delivered as its last id on every backend, so ids alone give exact usage;
    - lost, refused or not ready before the first token: `BackendUnavailable`; after it: `BackendError`;
    - foreign exceptions never leave the adapter.
    """

    @property
    def name(self) -> str: ...

    def start(self, request: GenerateRequest, sink: Sink) -> Call: ...

    async def is_ready(self) -> bool:
        """Ask the server whether it can generate now; False on any failure, never raises, bounded in time."""
        ...

    async def aclose(self) -> None:
        """Cancel every call and release connections."""
        ...


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

    def start(self, version: int, now: float, side: str | None = None) -> State: ...

    def choose(
        self, request: GenerateRequest, loads: Mapping[str, Load], state: State, now: float
    ) -> tuple[Route, State]: ...

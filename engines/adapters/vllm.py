"""vLLM's AsyncLLM behind the seam of our Triton Python model.

In: parameters, decoded requests. Out: tokens to a Receiver. Written for vLLM 0.24 to 0.32: what it uses has the same
signature in both. The engine itself is a child process of vLLM's; here its requests live on an event loop.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from engines.adapters.arguments import read_arguments
from engines.adapters.deliveries import Deliveries
from engines.reference import sampling
from engines.reference.engine import TokenOutput
from engines.reference.generation import FinishReason
from engines.reference.guide import Guide
from engines.reference.runner import Receiver
from engines.reference.scores import Score
from engines.reference.trtllm_contract import Limits, TokenRequest

DEFAULTS: Mapping[str, Any] = {  # as vLLM types them
    "disable_log_stats": True,  # nobody reads this process's own metrics page
    "generation_config": "vllm",  # a request says all of its sampling; the model's further end ids are stop words
}
FINISH_REASONS: Mapping[str, FinishReason] = {"stop": "stop", "length": "length"}
GUIDED_BACKENDS = {"llguidance": "guidance"}  # the same library; the first is TensorRT-LLM's name for it


@dataclass(frozen=True, slots=True)
class Load:
    """An EngineLoad."""

    running: int
    waiting: int
    capacity: int
    kv_tokens_used: int
    kv_tokens_total: int
    tokens_per_block: int
    steps: int


class VllmAdapter:
    """Parameters: model_dir, engine_args (a file of AsyncEngineArgs), guided_decoding_backend (llguidance, or one that
    vLLM names).
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        # The process that imports us has threads, and Triton's shared memory: a fork of it would hold both.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # noqa: TID251 - where vLLM reads its settings
        arguments = engine_arguments(parameters)
        self._ids = count(1)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._gauges = Gauges()
        self._deliveries = Deliveries()
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        started: Future[AsyncLLM] = Future()
        self._thread = threading.Thread(target=self._run, args=(arguments, started), name="vllm", daemon=True)
        self._thread.start()
        self._engine = started.result()
        self.limits = self._limits(parameters)

    @property
    def load(self) -> Load:
        """How many requests are in flight is known here at every moment; how many of them wait, as of the last step."""
        active, config = len(self._calls), self._engine.vllm_config
        waiting = min(active, self._gauges.waiting)
        total = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
        return Load(
            running=active - waiting,
            waiting=waiting,
            capacity=config.scheduler_config.max_num_seqs,
            kv_tokens_used=round(self._gauges.kv_cache_usage * total),
            kv_tokens_total=total,
            tokens_per_block=config.cache_config.block_size,
            steps=self._gauges.steps,
        )

    def start(self, request: TokenRequest, receiver: Receiver) -> Callable[[], None]:
        request_id = str(next(self._ids))
        self._loop.call_soon_threadsafe(self._begin, request_id, request, receiver)
        return lambda: self._cancel(request_id)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        self._deliveries.close()

    def _limits(self, parameters: Mapping[str, str]) -> Limits:
        config = self._engine.model_config
        # vLLM itself refuses a guide that is none, when it is given one.
        check_guide = _accept if parameters.get("guided_decoding_backend") else None
        return Limits(config.get_vocab_size(), config.max_model_len, check_guide)

    def _run(self, arguments: AsyncEngineArgs, started: Future[AsyncLLM]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(arguments, started))

    async def _serve(self, arguments: AsyncEngineArgs, started: Future[AsyncLLM]) -> None:
        try:
            engine = AsyncLLM.from_engine_args(arguments, stat_loggers=[self._gauges.attach])
        # Edge of the thread: whoever waits for the engine hears why there is none.
        except BaseException as exc:  # noqa: BLE001 - raised again where it is waited for
            started.set_exception(exc)
            return
        try:
            async with asyncio.TaskGroup() as self._group:
                started.set_result(engine)
                await self._closing.wait()
                for call in self._calls.values():
                    call.cancel()
        finally:
            engine.shutdown()

    def _begin(self, request_id: str, request: TokenRequest, receiver: Receiver) -> None:
        call = self._calls[request_id] = self._group.create_task(self._answer(request_id, request, receiver))
        # Not by the coroutine, which one that is cancelled at once never enters.
        call.add_done_callback(lambda _: self._calls.pop(request_id))

    def _cancel(self, request_id: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._drop, request_id)

    def _drop(self, request_id: str) -> None:
        if (call := self._calls.get(request_id)) is not None:
            call.cancel()

    async def _answer(self, request_id: str, request: TokenRequest, receiver: Receiver) -> None:
        try:
            prompt, params = tokens_input(list(request.prompt)), sampling_params(request.params)
            told = 0
            async for output in self._engine.generate(prompt, params, request_id):
                (completion,) = output.outputs
                outputs = token_outputs(completion, told)
                told += len(outputs)
                self._deliveries.tokens(receiver, outputs)
        # Edge of the request: whatever goes wrong with it, the others go on.
        except Exception as exc:  # noqa: BLE001 - told to the client
            self._deliveries.failed(receiver, explain(exc))


class Gauges(StatLoggerBase):  # type: ignore[misc]  # untyped where vLLM is not
    """What vLLM's scheduler last told of itself."""

    def __init__(self) -> None:
        self.waiting = 0
        self.kv_cache_usage = 0.0
        self.steps = 0

    def attach(self, vllm_config: object, engine_index: int = 0) -> "Gauges":
        """The factory that AsyncLLM asks for."""
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **more: Any) -> None:  # vLLM's, untyped
        if scheduler_stats is not None:
            self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
            self.steps += 1

    def log_engine_initialized(self) -> None: ...


class UnusableAnswer(Exception):
    """vLLM ended it for a reason that no answer ends for."""


def engine_arguments(parameters: Mapping[str, str]) -> AsyncEngineArgs:
    given = read_arguments(parameters, [field.name for field in fields(AsyncEngineArgs)])
    backend = parameters.get("guided_decoding_backend")
    structured = given.pop("structured_outputs_config", None) or {}
    if backend:
        structured = {"backend": GUIDED_BACKENDS.get(backend, backend)} | structured
    return AsyncEngineArgs(
        model=parameters["model_dir"],
        structured_outputs_config=StructuredOutputsConfig(**structured),
        **{**DEFAULTS, **given},
    )


def sampling_params(params: sampling.SamplingParams) -> SamplingParams:
    """The end id is the request's own, not the model's: a stop id, which min_tokens holds back just the same."""
    return SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=None if params.is_greedy or params.seed is None else as_vllm_seed(params.seed),
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        ignore_eos=True,
        stop_token_ids=[*params.stop_ids, *(() if params.ignore_eos else params.end_ids)],
        logit_bias=dict(params.logit_bias) or None,
        structured_outputs=None if params.guide is None else structured_outputs(params.guide),
        logprobs=params.logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def as_vllm_seed(seed: int) -> int:
    """The tensor is UINT64; vLLM keeps seeds as int64, and -1 is none to it."""
    return seed % 2**63


def structured_outputs(guide: Guide) -> StructuredOutputsParams:
    match guide.kind:
        case "json":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            return StructuredOutputsParams(json=guide.text)
        case "regex":
            return StructuredOutputsParams(regex=guide.text)
        case "ebnf_grammar":
            return StructuredOutputsParams(grammar=guide.text)
        case "choice":
            return StructuredOutputsParams(choice=json.loads(guide.text))


def token_outputs(completion: CompletionOutput, told: int) -> Sequence[TokenOutput]:
    """A delta's tokens; `told` came before them. UnusableAnswer if it ended for neither of our reasons."""
    ids, reason = completion.token_ids, completion.finish_reason
    if reason is not None and reason not in FINISH_REASONS:
        raise UnusableAnswer(f"The engine ended the answer: {reason}")
    last = len(ids) - 1
    return [
        TokenOutput(
            request_id="",
            token_id=token_id,
            score=score(completion, place, token_id),
            finish_reason=FINISH_REASONS[reason] if reason is not None and place == last else None,
            position=told + place + 1,
        )
        for place, token_id in enumerate(ids)
    ]


def score(completion: CompletionOutput, place: int, token_id: int) -> Score | None:
    if completion.logprobs is None:
        return None
    logprob = completion.logprobs[place][token_id]
    return Score(token_id, logprob.logprob, logprob.rank)


def explain(error: Exception) -> str:
    """What the client reads: a refusal in vLLM's words, else that the engine failed, and how."""
    match error:
        case EngineGenerateError() | EngineDeadError():
            cause = error.__cause__ or error
            return f"The engine failed: {type(cause).__name__}: {cause}"
        case _:
            return str(error)


def _accept(guide: Guide) -> None: ...

"""vLLM's AsyncLLM as a TokenEngine for our Triton Python model.

In: parameters, decoded requests. Out: tokens to a Receiver. Written for vLLM 0.24 to 0.32, which have the same
signatures here. The engine itself is a child process of vLLM's; its requests live on an event loop in this one.
"""

import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import fields
from itertools import count
from typing import Any

from vllm.config import StructuredOutputsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.loggers import StatLoggerBase

from engines.adapters.arguments import read_arguments
from engines.adapters.loop_adapter import Delta, LoopAdapter, accept_any_guide, guide_fields
from engines.adapters.lora import lora_directories, lora_requests
from engines.reference import sampling
from engines.reference.engine import EngineLoad
from engines.reference.scores import Score
from engines.reference.trtllm_contract import Limits, TokenRequest

DEFAULTS: Mapping[str, Any] = {  # as vLLM types them
    "disable_log_stats": True,  # this process serves no metrics page
    "generation_config": "vllm",  # a request names all its sampling; the model's further end ids come as stop words
}
GUIDED_BACKENDS = {"llguidance": "guidance"}  # the same library; the first is TensorRT-LLM's name for it


class VllmAdapter(LoopAdapter[AsyncLLM]):
    """vLLM's AsyncLLM. Parameters: model_dir, engine_args (a file of AsyncEngineArgs), guided_decoding_backend
    (llguidance, or one that vLLM names), lora_prefetch_dir.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        # The importing process has threads and Triton's shared memory, which a fork would inherit.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # noqa: TID251 - where vLLM reads its settings
        arguments = engine_arguments(parameters)
        self._loras = lora_requests(parameters, LoRARequest)
        self._ids = count(1)
        self._gauges = Gauges()
        super().__init__(lambda: self._make(arguments), AsyncLLM.shutdown)
        config = self._engine.model_config
        check_guide = accept_any_guide if parameters.get("guided_decoding_backend") else None
        self.limits = Limits(config.get_vocab_size(), config.max_model_len, check_guide, tuple(self._loras))

    @property
    def load(self) -> EngineLoad:
        """Requests in flight are counted here, so they are exact; how many wait is known from the last step."""
        active, config = len(self._loop), self._engine.vllm_config
        waiting = min(active, self._gauges.waiting)
        total = (config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size
        return EngineLoad(
            running=active - waiting,
            waiting=waiting,
            capacity=config.scheduler_config.max_num_seqs,
            kv_tokens_used=round(self._gauges.kv_cache_usage * total),
            kv_tokens_total=total,
            tokens_per_block=config.cache_config.block_size,
            steps=self._gauges.steps,
        )

    def _make(self, arguments: AsyncEngineArgs) -> AsyncLLM:
        return AsyncLLM.from_engine_args(arguments, stat_loggers=[self._gauges.attach])

    async def _generate(self, request: TokenRequest) -> AsyncGenerator[Delta, None]:
        prompt, params = tokens_input(list(request.prompt)), sampling_params(request.params)
        lora = None if request.lora_task_id is None else self._loras[request.lora_task_id]
        async for output in self._engine.generate(prompt, params, str(next(self._ids)), lora_request=lora):
            (completion,) = output.outputs
            yield completion.token_ids, scores(completion), completion.finish_reason

    def _explain(self, error: Exception) -> str:
        """Returns a refusal in vLLM's words; for other errors, that the engine failed, and how."""
        if isinstance(error, EngineGenerateError | EngineDeadError):
            cause = error.__cause__ or error
            return f"The engine failed: {type(cause).__name__}: {cause}"
        return str(error)


class Gauges(StatLoggerBase):  # type: ignore[misc]  # untyped where vLLM is not
    """The numbers that vLLM's scheduler reported last."""

    def __init__(self) -> None:
        self.waiting = 0
        self.kv_cache_usage = 0.0
        self.steps = 0

    def attach(self, vllm_config: object, engine_index: int = 0) -> "Gauges":
        """Returns itself, as the factory of stat loggers that AsyncLLM needs."""
        return self

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **more: Any) -> None:  # vLLM's, untyped
        if scheduler_stats is not None:
            self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
            self.steps += 1

    def log_engine_initialized(self) -> None: ...


def engine_arguments(parameters: Mapping[str, str]) -> AsyncEngineArgs:
    given = read_arguments(parameters, [field.name for field in fields(AsyncEngineArgs)])
    backend = parameters.get("guided_decoding_backend")
    structured = given.pop("structured_outputs_config", None) or {}
    if backend:
        structured = {"backend": GUIDED_BACKENDS.get(backend, backend)} | structured
    loras = {"enable_lora": True} if lora_directories(parameters) else {}
    return AsyncEngineArgs(
        model=parameters["model_dir"],
        structured_outputs_config=StructuredOutputsConfig(**structured),
        **{**DEFAULTS, **loras, **given},
    )


def sampling_params(params: sampling.SamplingParams) -> SamplingParams:
    """Passes the request's own end id, not the model's, as a stop id, which min_tokens holds back just the same."""
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
        structured_outputs=None if params.guide is None else StructuredOutputsParams(**guide_fields(params.guide)),
        logprobs=params.logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def as_vllm_seed(seed: int) -> int:
    """Reduces the tensor's UINT64 to 63 bits: vLLM keeps seeds as int64, where -1 means none."""
    return seed % 2**63


def scores(completion: CompletionOutput) -> list[Score] | None:
    """Returns the scores of a delta's tokens, if they were asked for."""
    if completion.logprobs is None:
        return None
    by_token = zip(completion.token_ids, completion.logprobs, strict=True)
    return [Score(token_id, row[token_id].logprob, row[token_id].rank) for token_id, row in by_token]

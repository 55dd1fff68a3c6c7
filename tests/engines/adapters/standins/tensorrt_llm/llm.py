"""LLM: the documented arguments, others refused as its own strict model does; the reference engine computes."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from engines.reference import sampling
from engines.reference.checkpoint import load_checkpoint
from engines.reference.engine import Engine, TokenOutput
from engines.reference.guide import Grammars, Guide, GuideKind
from engines.reference.runner import Runner, post_inline
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.llmapi.llm_args import check_arguments
from tensorrt_llm.result import Logprob, RequestOutput
from tensorrt_llm.sampling_params import GuidedDecodingParams, SamplingParams

RETURNS_END = os.environ.get("STANDIN_RETURNS_END") == "1"  # noqa: TID251 - read by a test's subprocess
TOKENS_A_RESPONSE = int(os.environ.get("STANDIN_TOKENS", "1"))  # noqa: TID251 - read by a test's subprocess


class LLM:
    def __init__(self, model: str | Path, *, skip_tokenizer_init: bool = False, **kwargs: Any) -> None:
        check_arguments(kwargs)
        checkpoint = load_checkpoint(Path(model))
        if kwargs.get("guided_decoding_backend") and skip_tokenizer_init:
            raise ValueError("guided decoding needs the tokenizer")
        grammars = Grammars(Path(model), checkpoint.config.vocab_size)
        engine = Engine(checkpoint, max_batch=kwargs.get("max_batch_size", 8), grammars=grammars)
        self._reports = bool(kwargs.get("enable_iter_perf_stats"))
        self._runner = Runner(engine, post_inline)
        self._runner.start()
        self._count = 0

    def generate_async(
        self,
        inputs: Sequence[int],
        sampling_params: SamplingParams,
        lora_request: LoRARequest | None = None,
        *,
        streaming: bool = False,
    ) -> RequestOutput:
        assert isinstance(inputs, list)
        assert sampling_params.end_id is not None, "tokenizer is required to reset end_id if it is None"
        assert streaming
        if lora_request is not None:
            lora = f"{lora_request.lora_name} {lora_request.lora_int_id} {lora_request.lora_path}"
            raise ValueError(f"the stand-in has no adapters: {lora}")
        self._count += 1
        result = RequestOutput(self._count, lambda number: self._runner.cancel(str(number)))
        self._runner.submit(str(self._count), inputs, translate(sampling_params), Answer(result, sampling_params))
        return result

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[dict[str, object]]:
        await asyncio.sleep(0)
        stats = self._runner.stats
        if self._reports:
            yield {
                "iter": stats.steps,
                "numActiveRequests": stats.running,
                "numQueuedRequests": stats.waiting,
                "maxNumActiveRequests": stats.capacity,
                "kvCacheStats": {
                    "maxNumBlocks": stats.kv_tokens_total // 32,
                    "usedNumBlocks": -(-stats.kv_tokens_used // 32),
                    "tokensPerBlock": 32,
                },
            }

    def shutdown(self) -> None:
        self._runner.close()
        assert threading.current_thread() is not threading.main_thread()


class Answer:
    """A Receiver that passes an answer on in TensorRT-LLM's steps."""

    def __init__(self, result: RequestOutput, params: SamplingParams) -> None:
        self._result = result
        self._params = params
        self._held: list[TokenOutput] = []

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self._held += outputs
        reason = outputs[-1].finish_reason
        if reason is None and len(self._held) < TOKENS_A_RESPONSE:
            return
        if reason == "stop" and not RETURNS_END:
            self._held.pop()
        rows = [{output.token_id: Logprob(output.logprob)} for output in self._held if output.logprob is not None]
        self._result.put(([output.token_id for output in self._held], rows if self._params.logprobs else [], reason))
        self._held = []

    def failed(self, message: str) -> None:
        self._result.put(ValueError(message))


def translate(params: SamplingParams) -> sampling.SamplingParams:
    bias = () if params.embedding_bias is None else tuple(enumerate(params.embedding_bias.tolist()))
    return sampling.SamplingParams(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens or 0,
        temperature=0.0 if params.is_greedy else 1.0 if params.temperature is None else params.temperature,
        top_k=params.top_k or 0,
        top_p=params.top_p or 1.0,
        seed=params.seed or 0,
        repetition_penalty=1.0 if params.repetition_penalty is None else params.repetition_penalty,
        presence_penalty=params.presence_penalty or 0.0,
        frequency_penalty=params.frequency_penalty or 0.0,
        end_ids=() if params.end_id == -1 else (params.end_id,),
        logit_bias=tuple((token_id, value) for token_id, value in bias if value),
        guide=None if params.guided_decoding is None else guide_of(params.guided_decoding),
        stop_ids=tuple(params.stop_token_ids or ()),
        min_p=params.min_p or 0.0,
        logprobs=0 if params.logprobs else None,
    )


def guide_of(params: GuidedDecodingParams) -> Guide:
    if params.json_object:
        return Guide("json")
    kinds: dict[GuideKind, str | None] = {
        "json_schema": params.json,
        "regex": params.regex,
        "ebnf_grammar": params.grammar,
    }
    ((kind, text),) = ((kind, text) for kind, text in kinds.items() if text)
    return Guide(kind, text)

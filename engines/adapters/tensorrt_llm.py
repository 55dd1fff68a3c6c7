"""TensorRT-LLM's LLM API (its PyTorch flow) as a TokenEngine for our Triton Python model.

In: parameters, decoded requests. Out: tokens to a Receiver. Written to the documented contract of TensorRT-LLM 1.2 and
1.3. Its own processes compute; its requests live on an event loop in this one.
"""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.llmapi import CompletionOutput, GuidedDecodingParams
from tensorrt_llm.llmapi.llm_args import DecodingBaseConfig
from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

from engines.adapters.arguments import ArgumentError, read_arguments
from engines.adapters.loop_adapter import Delta, LoopAdapter, accept_any_guide, guide_fields
from engines.adapters.lora import lora_requests
from engines.adapters.outputs import UnusableAnswer
from engines.adapters.trtllm_sampling import complete, find_unfollowed
from engines.reference import sampling
from engines.reference.engine import EngineLoad
from engines.reference.scores import Score
from engines.reference.trtllm_contract import Limits, TokenRequest

DEFAULTS: Mapping[str, Any] = {  # as TensorRT-LLM types them
    "enable_iter_perf_stats": True,  # else it reports neither queue nor cache
    "skip_tokenizer_init": True,  # ids alone come and go
}
NO_END = -1  # an end id that no token has: how the executor ignores it
STATS_PERIOD_S = 0.1  # TensorRT-LLM's default for the same numbers in its C++ Triton backend


class TensorrtLlmAdapter(LoopAdapter[LLM]):
    """The LLM API. Parameters: model_dir, engine_args (a file of LlmArgs), guided_decoding_backend (xgrammar or
    llguidance), lora_prefetch_dir. With the last, engine_args has to set `lora_config`.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        arguments = engine_arguments(parameters)
        for_release = translate_arguments(arguments, parameters)
        self._loras = lora_requests(parameters, LoRARequest)
        self._stats: Mapping[str, Any] = {}
        super().__init__(lambda: LLM(model=parameters["model_dir"], **for_release), LLM.shutdown)
        check_guide = accept_any_guide if arguments.get("guided_decoding_backend") else None
        self.limits = Limits(
            vocab_size(parameters["model_dir"]),
            arguments["max_seq_len"],
            check_guide,
            tuple(self._loras),
            find_unfollowed(arguments, DecodingBaseConfig.model_fields),
        )
        self._loop.begin(self._watch_stats)

    @property
    def load(self) -> EngineLoad:
        """Requests in flight are counted here, so they are exact; the rest is of the last step that was reported."""
        active = len(self._loop) - 1  # one coroutine watches the stats
        cache = self._stats.get("kvCacheStats") or {}
        waiting = min(active, self._stats.get("numQueuedRequests", 0))
        block = cache.get("tokensPerBlock", 32)
        return EngineLoad(
            running=active - waiting,
            waiting=waiting,
            capacity=self._stats.get("maxNumActiveRequests", 0),
            kv_tokens_used=cache.get("usedNumBlocks", 0) * block,
            kv_tokens_total=cache.get("maxNumBlocks", 0) * block,
            tokens_per_block=block,
            steps=self._stats.get("iter", 0),
        )

    async def _generate(self, request: TokenRequest) -> AsyncGenerator[Delta, None]:
        """Yields new tokens: a response's `token_ids` are all so far, and it may bring those of several steps."""
        params = sampling_params(request.params, self.limits.vocab_size)
        lora = None if request.lora_task_id is None else self._loras[request.lora_task_id]
        result = self._engine.generate_async(
            list(request.prompt), sampling_params=params, lora_request=lora, streaming=True
        )
        seen = 0
        try:
            async for output in result:
                completion = output.outputs[0]
                yield completion.token_ids[seen:], scores(completion, seen), completion.finish_reason
                seen = len(completion.token_ids)
        except asyncio.CancelledError:
            result.abort()
            raise

    async def _watch_stats(self) -> None:
        while True:
            async for stats in self._engine.get_stats_async(timeout=STATS_PERIOD_S):
                self._stats = stats
            await asyncio.sleep(STATS_PERIOD_S)


def engine_arguments(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Makes arguments; the LLM refuses unknown names. They always hold the context length, which it does not report."""
    given = read_arguments(parameters)
    if "max_seq_len" not in given:
        given["max_seq_len"] = context_length(parameters["model_dir"])
    if backend := parameters.get("guided_decoding_backend"):
        # Grammars are made of the tokenizer.
        given = {"guided_decoding_backend": backend, "skip_tokenizer_init": False} | given
    return complete({**DEFAULTS, **given}, DecodingBaseConfig.model_fields)


def translate_arguments(arguments: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, Any]:
    """The arguments in the form that the installed release takes. Raises ArgumentError for a section that it refuses.

    The LLM of 1.2 refuses the `decoding_type` of a plain `speculative_config`, later releases need it. TensorRT-LLM's
    own servers, which read the same file, call the same function.
    """
    given = {name: value for name, value in arguments.items() if name != "speculative_config" or value is not None}
    try:
        # It changes what it is given.
        translated: dict[str, Any] = update_llm_args_with_extra_dict({}, copy.deepcopy(given))
    except (ValueError, TypeError) as exc:
        raise ArgumentError(f"{parameters.get('engine_args')}: {exc}") from exc
    return translated


def vocab_size(model_dir: str) -> int:
    return _configured(model_dir, "vocab_size")


def context_length(model_dir: str) -> int:
    return _configured(model_dir, "max_position_embeddings")


def _configured(model_dir: str, name: str) -> int:
    """A number of the checkpoint's config.json; a multimodal model keeps the numbers of its text apart."""
    file = Path(model_dir, "config.json")
    try:
        config = json.loads(file.read_text())
        return int({**config, **config.get("text_config", {})}[name])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ArgumentError(f"cannot read {name} from {file}: {type(exc).__name__}: {exc}") from exc


def sampling_params(params: sampling.SamplingParams, vocab: int) -> SamplingParams:
    """Translates the parameters: greedy is top_k 1, and fields that would change nothing are left out."""
    (end_id,) = params.end_ids or (NO_END,)
    return SamplingParams(
        end_id=end_id,
        stop_token_ids=list(params.stop_ids) or None,
        include_stop_str_in_output=True,  # the last id shows what ended the answer
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens or None,
        repetition_penalty=params.repetition_penalty if params.repetition_penalty != 1.0 else None,
        presence_penalty=params.presence_penalty or None,
        frequency_penalty=params.frequency_penalty or None,
        embedding_bias=embedding_bias(params.logit_bias, vocab) if params.logit_bias else None,
        guided_decoding=None if params.guide is None else GuidedDecodingParams(**guide_fields(params.guide)),
        # With any number of alternatives it returns the token's own log-probability; with none or 0 it returns nothing.
        logprobs=None if params.logprobs is None else 1,
        detokenize=False,
        **drawing(params),
    )


def drawing(params: sampling.SamplingParams) -> dict[str, Any]:  # as SamplingParams types them
    if params.is_greedy:
        return {"top_k": 1}
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k if params.top_k > 0 else None,
        "min_p": params.min_p or None,
        "seed": params.seed,
    }


def embedding_bias(bias: tuple[tuple[int, float], ...], vocab: int) -> torch.Tensor:
    """Returns the bias of every token, FP32 [vocab]."""
    dense = np.zeros(vocab, np.float32)
    dense[[token_id for token_id, _ in bias]] = [value for _, value in bias]
    return torch.from_numpy(dense)


def scores(completion: CompletionOutput, seen: int) -> list[Score] | None:
    """Reads scores after the first `seen` tokens, if asked for: by token id, or as plain numbers in other flows."""
    if not completion.logprobs:
        return None
    rows = zip(completion.token_ids[seen:], completion.logprobs[seen:], strict=True)
    return [score(token_id, row) for token_id, row in rows]


def score(token_id: int, row: Any) -> Score:  # a dict of Logprobs, or a float
    if isinstance(row, float):
        return Score(token_id, row, rank=0)
    if token_id not in row:
        raise UnusableAnswer(f"The engine returned no log probability of token {token_id}")
    return Score(token_id, row[token_id].logprob, row[token_id].rank or 0)

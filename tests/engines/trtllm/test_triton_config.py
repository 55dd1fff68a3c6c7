"""config.pbtxt of the C++ Triton backend: tensors and parameters, parsed as Triton parses them; what is refused."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.recipes import CompiledRecipe, find_recipe, list_recipes, load_recipe, parse_recipe
from engines.recipes.load import dump_recipe
from engines.reference.trtllm_contract import INPUTS, OUTPUTS
from engines.trtllm.triton_config import TEMPLATE, RenderError, fill, parse_config, render_config

ENGINE = Path("/engines/llama")
COMPILED = [name for name in list_recipes() if "torch" not in name]

# TensorRT-LLM's triton_backend/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt@0c8de69: (type, dims). An i
# after the type: optional scalars arrive as [1] and are handed on without that dimension; r: ragged.
SCALARS = {
    "INT32": (
        *("encoder_output_lengths", "input_lengths", "request_output_len", "num_return_sequences"),
        *("decoder_input_lengths", "end_id", "pad_id", "beam_width", "runtime_top_k", "runtime_top_p_reset_ids"),
        *("min_tokens", "prompt_vocab_size"),
    ),
    "FP32": (
        *("draft_acceptance_threshold", "temperature", "runtime_top_p", "runtime_top_p_min", "runtime_top_p_decay"),
        *("len_penalty", "repetition_penalty", "beam_search_diversity_rate", "presence_penalty", "frequency_penalty"),
    ),
    "UINT64": ("seed", "lora_task_id"),
    "BOOL": (
        *("early_stopping", "return_log_probs", "return_context_logits", "return_generation_logits"),
        *("return_perf_metrics", "return_num_input_tokens", "return_num_output_tokens", "exclude_input_in_output"),
        *("stop", "streaming"),
    ),
}
RAGGED: dict[str, tuple[str, tuple[int, ...]]] = {
    "input_ids": ("INT32", (-1,)),
    "encoder_input_features": ("FP16", (-1, -1)),
    "draft_input_ids": ("INT32", (-1,)),
    "decoder_input_ids": ("INT32", (-1,)),
    "draft_logits": ("FP32", (-1, -1)),
    "stop_words_list": ("INT32", (2, -1)),
    "bad_words_list": ("INT32", (2, -1)),
    "embedding_bias": ("FP32", (-1,)),
    "prompt_embedding_table": ("BF16", (-1, -1)),
    "prompt_table_extra_ids": ("UINT64", (-1,)),
    "cross_attention_mask": ("BOOL", (-1, -1)),
    "lora_weights": ("FP16", (-1, -1)),
    "lora_config": ("INT32", (-1, 3)),
    "context_phase_params": ("UINT8", (-1,)),
    "skip_cross_attn_blocks": ("BOOL", (1,)),
    "retention_token_range_starts": ("INT32", (-1,)),
    "retention_token_range_ends": ("INT32", (-1,)),
    "retention_token_range_priorities": ("INT32", (-1,)),
    "retention_token_range_durations_ms": ("INT32", (-1,)),
    "retention_decode_priority": ("INT32", (1,)),
    "retention_decode_duration_ms": ("INT32", (1,)),
    "guided_decoding_guide_type": ("STRING", (1,)),
    "guided_decoding_guide": ("STRING", (1,)),
    "lookahead_window_size": ("INT32", (1,)),
    "lookahead_ngram_size": ("INT32", (1,)),
    "lookahead_verification_set_size": ("INT32", (1,)),
}
PLAIN: dict[str, tuple[str, tuple[int, ...]]] = {
    "mrope_rotary_cos_sin": ("FP32", (-1,)),
    "mrope_position_deltas": ("INT64", (1,)),
}
OUTPUT_TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "output_ids": ("INT32", (-1, -1)),
    "sequence_length": ("INT32", (-1,)),
    "cum_log_probs": ("FP32", (-1,)),
    "output_log_probs": ("FP32", (-1, -1)),
    "context_logits": ("FP32", (-1, -1)),
    "generation_logits": ("FP32", (-1, -1, -1)),
    "batch_index": ("INT32", (1,)),
    "sequence_index": ("INT32", (1,)),
    "context_phase_params": ("UINT8", (-1,)),
    "kv_cache_alloc_new_blocks": ("INT32", (1,)),
    "kv_cache_reused_blocks": ("INT32", (1,)),
    "kv_cache_alloc_total_blocks": ("INT32", (1,)),
    "arrival_time_ns": ("INT64", (1,)),
    "first_scheduled_time_ns": ("INT64", (1,)),
    "first_token_time_ns": ("INT64", (1,)),
    "last_token_time_ns": ("INT64", (1,)),
    "acceptance_rate": ("FP32", (1,)),
    "total_accepted_draft_tokens": ("INT32", (1,)),
    "total_draft_tokens": ("INT32", (1,)),
    "num_input_tokens": ("INT32", (1,)),
    "num_output_tokens": ("INT32", (1,)),
}


def compiled(name: str, **changes: Any) -> CompiledRecipe:
    """A shipped recipe with other sections; with drafts, for few requests."""
    if "speculative" in changes:
        changes["limits"] = {"max_batch_size": 32}
    recipe = parse_recipe({**dump_recipe(load_recipe(find_recipe(name))), **changes})
    assert isinstance(recipe, CompiledRecipe)
    return recipe


def rendered(recipe: CompiledRecipe, tokenizer: Path | None = None) -> model_config_pb2.ModelConfig:
    return text_format.Parse(render_config(recipe, ENGINE, tokenizer), model_config_pb2.ModelConfig())


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def type_name(tensor: Any) -> str:
    name: str = model_config_pb2.DataType.Name(tensor.data_type)
    return name.removeprefix("TYPE_")


def test_inputs_are_those_of_the_cpp_backend() -> None:
    declared = {tensor.name: tensor for tensor in rendered(compiled("llama-3.1-8b-bf16-tp1")).input}
    scalars = {name: (kind, (1,)) for kind, names in SCALARS.items() for name in names}
    expected = {**scalars, **RAGGED, **PLAIN}
    assert {name: (type_name(tensor), tuple(tensor.dims)) for name, tensor in declared.items()} == expected
    assert {name for name, tensor in declared.items() if tensor.HasField("reshape")} == set(scalars)
    assert all(list(declared[name].reshape.shape) == [] for name in scalars)
    assert {name for name, tensor in declared.items() if tensor.allow_ragged_batch} == set(RAGGED)
    assert {name for name, tensor in declared.items() if not tensor.optional} == {"input_lengths", "request_output_len"}


def test_outputs_are_those_of_the_cpp_backend() -> None:
    declared = rendered(compiled("llama-3.1-8b-bf16-tp1")).output
    assert {tensor.name: (type_name(tensor), tuple(tensor.dims)) for tensor in declared} == OUTPUT_TENSORS


def test_every_tensor_that_the_gateways_contract_has_is_there_with_its_type_and_shape() -> None:
    config = rendered(compiled("llama-3.1-8b-bf16-tp1"))
    for contract, declared in ((INPUTS, config.input), (OUTPUTS, config.output)):
        known = {tensor.name: (type_name(tensor), tuple(tensor.dims)) for tensor in declared}
        for tensor in contract:
            assert known[tensor.name] == (tensor.datatype.replace("BYTES", "STRING"), tensor.dims)


@pytest.mark.parametrize("name", COMPILED)
def test_shipped_recipe_renders_without_a_placeholder_left(name: str) -> None:
    config = rendered(compiled(name))
    assert "$" not in render_config(compiled(name), ENGINE, None)
    assert (config.name, config.backend, config.max_batch_size) == (
        "tensorrt_llm",
        "tensorrtllm",
        load_recipe(find_recipe(name)).limits.max_batch_size,
    )
    assert config.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, 2)]  # KIND_CPU


def test_parameters_say_what_the_recipe_says() -> None:
    assert parameters_of(rendered(compiled("llama-3.1-8b-fp8-tp1"))) == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker",
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": "/engines/llama",
        "max_beam_width": "1",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "kv_cache_free_gpu_mem_fraction": "0.9",
        "kv_cache_host_memory_bytes": "0",
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": "true",
        "exclude_input_in_output": "true",
        "cancellation_check_period_ms": "50",
        "stats_check_period_ms": "100",
        "iter_stats_max_iterations": "1000",
        "request_stats_max_iterations": "0",
        "decoding_mode": "top_k_top_p",
        "cuda_graph_mode": "true",
        "cuda_graph_cache_size": "64",
        "normalize_log_probs": "true",
        "tokenizer_dir": "",
        "xgrammar_tokenizer_info_path": "",
        "guided_decoding_backend": "",
    }


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({"kv_cache": {"max_tokens": 65536}}, {"max_tokens_in_paged_kv_cache": "65536"}),
        ({"serving": {"gpu_device_ids": [0, 1]}}, {"gpu_device_ids": "0,1"}),
        ({"cuda_graphs": {"enabled": False}}, {"cuda_graph_mode": "false", "cuda_graph_cache_size": "0"}),
        (
            {"scheduling": {"in_flight_batching": False, "chunked_context": False}},
            {"gpt_model_type": "V1", "enable_chunked_context": "false"},
        ),
        ({"limits": {"max_beam_width": 2}}, {"max_beam_width": "2", "decoding_mode": "beam_search"}),
        (
            {"speculative": {"kind": "eagle", "draft_model": "/m", "choices": [[0], [0, 1]]}},
            {"decoding_mode": "eagle", "eagle_choices": "{0}, {0, 1}"},
        ),
        (
            {"speculative": {"kind": "medusa", "draft_model": "/m", "choices": [[0]]}},
            {"decoding_mode": "medusa", "medusa_choices": "{0}"},
        ),
        (
            {"speculative": {"kind": "lookahead", "window": 4, "ngram": 3, "verification_set": 2}},
            {
                "decoding_mode": "lookahead",
                "lookahead_window_size": "4",
                "lookahead_ngram_size": "3",
                "lookahead_verification_set_size": "2",
            },
        ),
        (
            {"lora": {"target_modules": ["attn_q"], "prefetch_dir": "/loras"}},
            {
                "lora_cache_optimal_adapter_size": "8",
                "lora_cache_max_adapter_size": "64",
                "lora_cache_gpu_memory_fraction": "0.05",
                "lora_cache_host_memory_bytes": "1073741824",
                "lora_prefetch_dir": "/loras",
            },
        ),
        (
            {"serving": {"xgrammar_tokenizer_info_path": "/engines/xgrammar.json"}},
            {"guided_decoding_backend": "xgrammar", "xgrammar_tokenizer_info_path": "/engines/xgrammar.json"},
        ),
    ],
)
def test_setting_reaches_its_parameter(changes: dict[str, Any], parameters: dict[str, str]) -> None:
    config = rendered(compiled("llama-3.1-8b-bf16-tp1", **changes))
    assert parameters.items() <= parameters_of(config).items()


def test_queue_is_bounded_where_the_executor_reads_its_bound() -> None:
    config = rendered(compiled("llama-3.1-8b-bf16-tp1", serving={"max_queue_size": 512}))
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 512


def test_path_with_quotes_and_backslashes_stays_itself() -> None:
    odd = Path('/engines/a "b"\\c')
    config = parse_config(render_config(compiled("llama-3.1-8b-bf16-tp1"), odd, odd))
    assert config.parameters["gpt_model_path"].string_value == str(odd)
    assert config.parameters["tokenizer_dir"].string_value == str(odd)


def parameter(name: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "${{{name}}}" }} }}'


@pytest.mark.parametrize(
    ("template", "values", "problem"),
    [
        (parameter("cuda_graph_mode"), {}, "no value for the placeholder cuda_graph_mode"),
        (parameter("a"), {"a": "1", "b": "2"}, "the template has no placeholder b"),
        ("max_batch_size: ${a}", {"a": None}, "the placeholder a has no value, and its line is no parameter"),
        ("max_batch_size: $1", {}, "the template has a \\$ that begins no placeholder"),
    ],
)
def test_template_and_values_that_do_not_fit_are_refused(
    template: str, values: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(RenderError, match=problem):
        fill(template, values)


def test_parameter_without_a_value_is_left_out_with_its_line() -> None:
    filled = fill(f"{parameter('a')}\n{parameter('b')}", {"a": None, "b": "2"})
    assert parameters_of(parse_config(filled)) == {"b": "2"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name: "a"\nparameters { key: "x" value { string_value: "${x}" } }', r"unfilled placeholder: \$\{x\}"),
        ("max_batch_sizes: 4", "not a model configuration: .*max_batch_sizes"),
        ("max_batch_size: many", "not a model configuration"),
        ("input [ { name: 'a' data_type: TYPE_INT33 dims: [ 1 ] } ]", "not a model configuration: .*TYPE_INT33"),
    ],
)
def test_text_that_triton_would_not_take_or_take_for_its_default_is_refused(text: str, problem: str) -> None:
    with pytest.raises(RenderError, match=problem):
        parse_config(text)


def test_template_with_a_placeholder_that_no_recipe_fills_is_refused() -> None:
    template = TEMPLATE.read_text() + parameter("enable_trt_overlap") + "\n"
    with pytest.raises(RenderError, match="no value for the placeholder enable_trt_overlap"):
        render_config(compiled("llama-3.1-8b-bf16-tp1"), ENGINE, None, template)

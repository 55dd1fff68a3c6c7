"""config.pbtxt of the C++ Triton backend: tensors and parameters, parsed as Triton parses them; what is refused."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.recipes.load import list_recipes
from engines.recipes.recipe import CompiledRecipe
from engines.trtllm.triton_config import RenderError, fill, parse_config, render_config
from gateway.backends.triton_config import read_capabilities
from gateway.core import Need
from gateway.engine_kinds.triton.model_config import find_differences, read_config
from tests.contract.facts import load_contract
from tests.engines.recipes.changed import compiled

ENGINE = Path("/engines/llama")
PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
Tensors = dict[str, tuple[str, tuple[int, ...]]]  # type and dims by name
COMPILED = [name for name in list_recipes() if "torch" not in name]


def rendered(recipe: CompiledRecipe, tokenizer: Path | None = None) -> model_config_pb2.ModelConfig:
    return text_format.Parse(render_config(recipe, ENGINE, tokenizer), model_config_pb2.ModelConfig())


def parameters_of(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    return {key: value.string_value for key, value in config.parameters.items()}


def type_name(tensor: Any) -> str:
    name: str = model_config_pb2.DataType.Name(tensor.data_type)
    return name.removeprefix("TYPE_").replace("STRING", "BYTES")


def test_inputs_are_those_of_the_cpp_backend() -> None:
    declared = {tensor.name: tensor for tensor in rendered(compiled("llama-3.1-8b-bf16-tp1")).input}
    facts = load_contract().backend_inputs
    expected: Tensors = {name: (fact.type, fact.dims) for name, fact in facts.items()}
    expected["prompt_embedding_table"] = ("BF16", (-1, -1))  # of the weights' type
    assert {name: (type_name(tensor), tuple(tensor.dims)) for name, tensor in declared.items()} == expected
    for name, tensor in declared.items():
        forms = {"reshaped": tensor.HasField("reshape"), "ragged": tensor.allow_ragged_batch}
        assert forms == {form: form == facts[name].form for form in forms}
        assert list(tensor.reshape.shape) == []
        assert tensor.optional != facts[name].required


def test_outputs_are_those_of_the_cpp_backend() -> None:
    declared = rendered(compiled("llama-3.1-8b-bf16-tp1")).output
    expected = {name: (fact.type, fact.dims) for name, fact in load_contract().backend_outputs.items()}
    assert {tensor.name: (type_name(tensor), tuple(tensor.dims)) for tensor in declared} == expected


@pytest.mark.parametrize("name", COMPILED)
def test_shipped_recipe_renders_without_a_placeholder_left(name: str) -> None:
    config = rendered(compiled(name))
    assert "$" not in render_config(compiled(name), ENGINE, None)
    assert (config.name, config.backend, config.max_batch_size) == (
        "tensorrt_llm",
        "tensorrtllm",
        compiled(name).limits.max_batch_size,
    )
    assert config.model_transaction_policy.decoupled
    assert [(group.count, group.kind) for group in config.instance_group] == [(1, 2)]  # KIND_CPU


def test_parameters_are_those_of_the_recipe() -> None:
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


@pytest.mark.parametrize(
    ("speculative", "left_out"),
    [
        ({"kind": "eagle", "draft_model": "/m"}, PENALTIES | {"min_tokens"}),
        ({"kind": "medusa", "draft_model": "/m"}, PENALTIES),
        ({"kind": "lookahead"}, PENALTIES),
        ({"kind": "draft_tokens_external", "max_draft_len": 4}, set()),
    ],
)
def test_no_input_is_declared_that_these_drafts_make_it_drop(speculative: dict[str, Any], left_out: set[str]) -> None:
    """So the gateway knows, and sends no such request there."""
    plain = rendered(compiled("llama-3.1-8b-bf16-tp1"))
    config = rendered(compiled("llama-3.1-8b-bf16-tp1", speculative=speculative))
    assert {tensor.name for tensor in plain.input} - {tensor.name for tensor in config.input} == left_out
    kept = {Need.PENALTIES: PENALTIES.isdisjoint(left_out), Need.MIN_TOKENS: "min_tokens" not in left_out}
    assert read_capabilities(config, 0).needs == {need for need, is_kept in kept.items() if is_kept}
    assert list(find_differences(read_config(config))) == []  # nor is it a fault to the doctor


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

"""The commands of both flows, word by word, and every option held against what its program declares."""

from pathlib import Path
from typing import Any

import pytest

from engines.recipes.load import list_recipes
from engines.recipes.recipe import CompiledRecipe
from engines.trtllm.compiled import Paths, make_compiled_steps
from engines.trtllm.steps import Container, show_command
from engines.trtllm.torch_flow import make_torch_steps, serve_command
from tests.engines.recipes.changed import compiled, torch
from tests.fakes.trtllm_programs import name_section
from tests.fakes.trtllm_release import make_parser

PATHS = Paths(Path("/models/llama"), Path("/engines/llama.checkpoint"), Path("/engines/llama"), Path("/app/examples"))
PLAIN = "llama-3.1-8b-bf16-tp1"
FP8 = "llama-3.1-8b-fp8-tp1"


def commands_of(recipe: CompiledRecipe) -> list[str]:
    return [" ".join(step.argv) for step in make_compiled_steps(recipe, PATHS)]


def test_bf16_is_converted_and_built_without_calibration() -> None:
    assert commands_of(compiled(PLAIN)) == [
        (
            "python3 /app/examples/models/core/llama/convert_checkpoint.py --model_dir /models/llama "
            "--output_dir /engines/llama.checkpoint --dtype bfloat16 --tp_size 1 --pp_size 1"
        ),
        (
            "trtllm-build --checkpoint_dir /engines/llama.checkpoint --output_dir /engines/llama --max_batch_size 256 "
            "--max_num_tokens 8192 --max_seq_len 8192 --max_beam_width 1 --kv_cache_type paged --tokens_per_block 32 "
            "--remove_input_padding enable --context_fmha enable --gemm_plugin auto --gemm_swiglu_plugin disable "
            "--low_latency_gemm_plugin disable --low_latency_gemm_swiglu_plugin disable "
            "--use_paged_context_fmha enable --use_fp8_context_fmha disable --reduce_fusion disable "
            "--user_buffer disable --multiple_profiles enable "
            "--workers 1 --output_timing_cache /engines/llama.checkpoint/model.cache"
        ),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"speculative": {"kind": "eagle", "draft_model": "/models/eagle", "layers": 5}},
            (
                "/app/examples/eagle/convert_checkpoint.py",
                "--eagle_model_dir /models/eagle --max_draft_len 63 --num_eagle_layers 5 --max_non_leaves_per_layer 10",
                "--speculative_decoding_mode eagle --max_draft_len 63",
            ),
        ),
        (
            {"speculative": {"kind": "medusa", "draft_model": "/models/medusa", "heads": 3}},
            (
                "/app/examples/medusa/convert_checkpoint.py",
                "--medusa_model_dir /models/medusa --num_medusa_heads 3 --max_medusa_token_len 63",
                "--speculative_decoding_mode medusa --max_draft_len 63",
            ),
        ),
        (
            {"speculative": {"kind": "lookahead"}},
            ("/app/examples/models/core/llama", "--speculative_decoding_mode lookahead_decoding --max_draft_len 83"),
        ),
        (
            {"speculative": {"kind": "draft_tokens_external", "max_draft_len": 10}},
            ("/app/examples/models/core/llama", "--speculative_decoding_mode draft_tokens_external --max_draft_len 10"),
        ),
        (
            {"lora": {"directories": ["/loras/a", "/loras/b"], "target_modules": ["attn_q", "attn_v"], "max_rank": 32}},
            (
                "--lora_plugin auto --max_lora_rank 32 --lora_dir /loras/a /loras/b",
                "--lora_target_modules attn_q attn_v",
            ),
        ),
    ],
    ids=["eagle", "medusa", "lookahead", "external drafts", "lora"],
)
def test_addition_reaches_converter_and_builder(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    commands = "\n".join(commands_of(compiled(PLAIN, **changes)))
    for expected in words:
        assert expected in commands


def test_medusa_on_quantized_weights_goes_through_quantize() -> None:
    speculative = {"kind": "medusa", "draft_model": "/models/medusa"}
    (quantize, _) = commands_of(compiled(FP8, speculative=speculative))
    assert quantize.endswith("--medusa_model_dir /models/medusa --num_medusa_heads 4 --max_draft_len 63")


ADDITIONS: list[dict[str, Any]] = [
    {},
    {"speculative": {"kind": "eagle", "draft_model": "/models/eagle"}},
    {"speculative": {"kind": "medusa", "draft_model": "/models/medusa"}},
    {"speculative": {"kind": "lookahead"}},
    {"speculative": {"kind": "draft_tokens_external", "max_draft_len": 10}},
    {"lora": {"directories": ["/loras/a"], "target_modules": ["attn_qkv"]}},
]
QUANTIZED = [name for name in list_recipes() if "torch" not in name and name != PLAIN]


@pytest.mark.parametrize(
    "recipe",
    [*(compiled(PLAIN, **changes) for changes in ADDITIONS), *(compiled(name) for name in QUANTIZED)],
    ids=[*(f"bf16 {next(iter(changes), 'alone')} {n}" for n, changes in enumerate(ADDITIONS)), *QUANTIZED],
)
def test_release_declares_every_option_and_value(recipe: CompiledRecipe) -> None:
    convert, build = make_compiled_steps(recipe, PATHS)
    section = name_section(Path(convert.argv[1]))
    make_parser(section).parse_args(convert.argv[2:])  # exits where an option or a value is unknown
    make_parser("build").parse_args(build.argv[1:])


def test_pytorch_flow_quantizes_with_model_optimizers_program_and_serves_what_that_wrote() -> None:
    recipe = torch("llama-3.1-8b-torch-fp8-tp2")
    (step,) = make_torch_steps(recipe, PATHS)
    assert " ".join(step.argv) == (
        "python3 /app/examples/llm_ptq/hf_ptq.py --pyt_ckpt_path /models/llama --export_path /engines/llama.checkpoint "
        "--qformat fp8 --kv_cache_qformat fp8 --dataset cnn_dailymail --calib_size 512 --batch_size 8"
    )
    assert " ".join(serve_command(recipe, PATHS)) == (
        "trtllm-serve /engines/llama.checkpoint --tokenizer /models/llama --backend pytorch --host 0.0.0.0 --port 8000 "
        "--tp_size 2 --pp_size 1 --max_batch_size 256 --max_num_tokens 8192 --max_seq_len 8192 --max_beam_width 1 "
        "--config /engines/llama/llm_args.yaml"
    )


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ({"weights": "fp8", "kv_cache": "auto"}, "--qformat fp8 --kv_cache_qformat none --dataset"),
        ({"weights": "int4_awq"}, "--qformat int4_awq --kv_cache_qformat none --awq_block_size 128 --dataset"),
        ({"weights": "nvfp4", "kv_cache": "fp8"}, "--qformat nvfp4 --kv_cache_qformat fp8 --dataset"),
    ],
)
def test_precision_of_the_pytorch_flow_goes_by_model_optimizers_words(precision: dict[str, Any], words: str) -> None:
    recipe = torch(
        "llama-3.1-8b-torch-fp8-tp2",
        precision={**precision, "calibration": {}},
        gpus={"architecture": "blackwell", "count": 2},
    )
    (step,) = make_torch_steps(recipe, PATHS)
    assert words in " ".join(step.argv)
    make_parser("hf_ptq").parse_args(step.argv[2:])


@pytest.mark.parametrize("name", [name for name in list_recipes() if "torch" in name])
def test_serve_command_has_no_option_and_no_value_that_the_release_does_not_take(name: str) -> None:
    make_parser("serve").parse_args(serve_command(torch(name), PATHS)[2:])


def test_pytorch_flow_has_nothing_to_run_for_a_checkpoint_that_is_served_as_it_is() -> None:
    recipe = torch("llama-3.1-8b-torch-eagle3-tp1")
    assert make_torch_steps(recipe, PATHS) == ()
    assert serve_command(recipe, PATHS)[1] == "/models/llama"


def test_container_sees_what_is_read_and_may_write_what_is_made() -> None:
    place = Container("image:tag", (Path("/models/llama"),), (Path("/engines/llama"),), (2, 3))
    words = place.wrap(["trtllm-build", "--workers", "2"])
    assert words[:4] == ("docker", "run", "--rm", "--init")
    assert words[words.index("--gpus") + 1] == '"device=2,3"'
    mounts = [words[index + 1] for index, word in enumerate(words) if word == "--volume"]
    assert mounts == ["/models/llama:/models/llama:ro", "/engines/llama:/engines/llama"]
    assert words[-4:] == ("image:tag", "trtllm-build", "--workers", "2")


def test_command_is_shown_as_a_shell_takes_it() -> None:
    assert show_command(("echo", "a b")) == "echo 'a b'"
    long = f"docker run --rm --volume /{'x' * 60}:/x image python3 -c print(1) --last {'z' * 40}"
    assert show_command(long.split()).splitlines() == [
        "docker run \\",
        "    --rm \\",
        f"    --volume /{'x' * 60}:/x \\",
        "    image python3 \\",
        "    -c 'print(1)' \\",
        f"    --last {'z' * 40}",
    ]

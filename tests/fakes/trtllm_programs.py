"""Stand-ins for TensorRT-LLM's and Model Optimizer's programs: each takes the options that its original declares, and
no other, and leaves a directory of its shape. Run as a program, it is the one of its own name.

Which options those are stands in options.json, in a folder above; trtllm_release.py writes it.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OPTIONS = "options.json"
VERSION = "1.2.1"
# The files that stand for each section of the facts, under the folder of examples; trtllm-build is on the path.
SCRIPTS = {
    "quantize": "quantization/quantize.py",
    "convert_checkpoint": "models/core/llama/convert_checkpoint.py",
    "convert_checkpoint_eagle": "eagle/convert_checkpoint.py",
    "convert_checkpoint_medusa": "medusa/convert_checkpoint.py",
    "hf_ptq": "llm_ptq/hf_ptq.py",
}
ALGORITHMS = {"fp8": "FP8", "int8_sq": "W8A8_SQ_PER_CHANNEL", "int4_awq": "W4A16_AWQ", "nvfp4": "NVFP4"}
MODES = {"draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "explicit_draft_tokens": 16, "eagle": 32}
TYPES = {"integer": int, "number": float}
Json = dict[str, Any]  # Any: documents of TensorRT-LLM's, read key by key


def make_parser(section: str, facts: Mapping[str, Json]) -> argparse.ArgumentParser:
    """Of the program that a section of the facts is about; `facts` are its options by name."""
    parser = argparse.ArgumentParser(prog=section, allow_abbrev=False)
    for name, fact in facts.items():
        if fact["type"] == "flag":
            parser.add_argument(f"--{name}", action="store_true")
            continue
        parser.add_argument(
            f"--{name}",
            type=TYPES.get(fact["type"], str),
            choices=fact["values"] or None,
            default=fact["default"],
            nargs="+" if fact["type"] == "texts" else None,
        )
    return parser


def name_section(script: Path) -> str:
    """By the file that is run."""
    return next(section for section, path in SCRIPTS.items() if script.as_posix().endswith(path))


def _quantize(options: argparse.Namespace) -> None:
    _write_checkpoint(options, ALGORITHMS.get(options.qformat), (options.kv_cache_dtype or "").upper() or None)


def _quantize_to_hugging_face(options: argparse.Namespace) -> None:
    cache = None if options.kv_cache_qformat == "none" else options.kv_cache_qformat.upper()
    quantization = {"quant_algo": ALGORITHMS[options.qformat], "kv_cache_quant_algo": cache}
    _write(Path(options.export_path) / "hf_quant_config.json", {"quantization": quantization})


def _convert(options: argparse.Namespace) -> None:
    _write_checkpoint(options, None, None)


def _write_checkpoint(options: argparse.Namespace, weights: str | None, cache: str | None) -> None:
    world = options.tp_size * options.pp_size
    mapping = {"world_size": world, "tp_size": options.tp_size, "pp_size": options.pp_size, "cp_size": 1}
    source = json.loads((Path(options.model_dir) / "config.json").read_text())
    heads = {name: getattr(options, name) for name in ("max_draft_len", "num_eagle_layers") if name in options}
    config = {
        **heads,
        "architecture": "EagleForCausalLM" if "num_eagle_layers" in heads else source["architectures"][0],
        "dtype": options.dtype,
        "mapping": mapping,
        "quantization": {"quant_algo": weights, "kv_cache_quant_algo": cache},
    }
    _write(Path(options.output_dir) / "config.json", config)


def _build(options: argparse.Namespace, overrides: Json) -> None:
    checkpoint = json.loads((Path(options.checkpoint_dir) / "config.json").read_text())
    build = _adjust(_describe_build(options), checkpoint)
    plugins = build["plugin_config"] | overrides.pop("plugin_config", {})
    document = {"version": VERSION, "pretrained_config": checkpoint}
    document["build_config"] = build | overrides | {"plugin_config": plugins}
    out = Path(options.output_dir)
    _write(out / "config.json", document)
    for rank in range(checkpoint["mapping"]["world_size"]):
        (out / f"rank{rank}.engine").write_bytes(f"plan of rank {rank}\n".encode() * 64)
    Path(options.output_timing_cache).write_bytes(b"timings")


def _describe_build(options: argparse.Namespace) -> Json:
    plugins = ("gemm_plugin", "gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")
    switches = ("use_paged_context_fmha", "use_fp8_context_fmha", "reduce_fusion", "user_buffer", "multiple_profiles")
    limits = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "max_draft_len", "opt_num_tokens")
    return {
        **{name: getattr(options, name) for name in limits},
        "max_input_len": 1024,
        "kv_cache_type": options.kv_cache_type.upper(),
        "speculative_decoding_mode": MODES.get(options.speculative_decoding_mode, 1),
        "lora_config": {"max_lora_rank": options.max_lora_rank or 64, "lora_target_modules": []},
        "plugin_config": {
            **{name: _read_plugin(getattr(options, name)) for name in (*plugins, "lora_plugin")},
            **{name: getattr(options, name) == "enable" for name in switches},
            "tokens_per_block": options.tokens_per_block,
            "streamingllm": False,
        },
    }


def _adjust(build: Json, checkpoint: Json) -> Json:
    """What build() of tensorrt_llm/builder.py makes of its settings, with no more than a line in the log."""
    plugins, drafts = build["plugin_config"], build["max_draft_len"] or checkpoint.get("max_draft_len", 0)
    most = build["max_seq_len"] * build["max_batch_size"]
    tokens = max(min(build["max_num_tokens"], most), plugins["tokens_per_block"])
    mode = build["speculative_decoding_mode"]
    if mode != 1:
        build = build | {"max_seq_len": build["max_seq_len"] + drafts, "max_draft_len": drafts}
        tokens = max(tokens, build["max_batch_size"] * (drafts + 1))
    if mode == MODES["eagle"]:
        build = build | {"max_seq_len": build["max_seq_len"] + checkpoint["num_eagle_layers"]}
    return build | {"max_num_tokens": tokens, "plugin_config": {**plugins, **_adjust_plugins(plugins, checkpoint)}}


def _adjust_plugins(plugins: Json, checkpoint: Json) -> Json:
    weights, cache = (checkpoint["quantization"][name] for name in ("quant_algo", "kv_cache_quant_algo"))
    is_paged, is_fp8 = plugins["use_paged_context_fmha"], plugins["use_fp8_context_fmha"]
    if weights not in {"FP8", "W4A8_AWQ", "NVFP4"}:
        is_fp8, is_paged = False, is_paged and cache != "FP8"
    elif is_paged:
        is_fp8 = cache == "FP8"
    fuses = checkpoint["architecture"] in {"LlamaForCausalLM", "Gemma2ForCausalLM", "MedusaForCausalLM"}
    reduces = plugins["reduce_fusion"] and checkpoint["mapping"]["tp_size"] > 1 and fuses
    return {
        "use_paged_context_fmha": is_paged and cache != "INT8",
        "use_fp8_context_fmha": is_fp8,
        "reduce_fusion": reduces,
        "user_buffer": plugins["user_buffer"] and reduces,
    }


def _read_plugin(value: str | None) -> str | None:
    return None if value == "disable" else value


def _write(path: Path, document: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=4))


RUN = {"quantize": _quantize, "hf_ptq": _quantize_to_hugging_face}


def _parse(script: Path, section: str, argv: Sequence[str]) -> argparse.Namespace:
    declared = next(folder / OPTIONS for folder in script.parents if (folder / OPTIONS).exists())
    return make_parser(section, json.loads(declared.read_text())[section]).parse_args(argv)


def main(argv: Sequence[str]) -> None:
    if argv[1:2] == ["trtllm-build"]:
        changes = Path(f"{argv[2]}.json")
        overrides = json.loads(changes.read_text()) if changes.exists() else {}
        _build(_parse(Path(argv[2]), "build", argv[3:]), overrides)
        return
    script = Path(argv[0]).absolute()
    section = name_section(script)
    options = _parse(script, section, argv[1:])
    sys.stdout.write(f"{section} is done\n")
    RUN.get(section, _convert)(options)


if __name__ == "__main__":
    main(sys.argv)

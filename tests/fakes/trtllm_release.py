"""A stand-in for the programs of TensorRT-LLM 1.2.1: it takes the options that they declare, and no other, and leaves
directories of their shape. install() links it into place; run as a program, it is the one that its name says.

Options and choices as TensorRT-LLM's examples/quantization/quantize.py@059c97c, the convert_checkpoint.py of
examples/models/core/llama@368f8f2, examples/eagle and examples/medusa, commands/build.py@65f1d15 and plugin.py declare.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMAGE = "trtllm:stand-in"
VERSION = "1.2.1"
TENSORRT = "10.14.1.48"
GPUS = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01\n" * 2

DTYPES = ("auto", "float16", "bfloat16", "float32")
SWITCH = ("enable", "disable")
PLUGIN = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
ALGORITHMS = {"fp8": "FP8", "int8_sq": "W8A8_SQ_PER_CHANNEL", "int4_awq": "W4A16_AWQ", "nvfp4": "NVFP4"}
MODES = {"draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "explicit_draft_tokens": 16, "eagle": 32}
# quantize.py's --qformat has "w4a8_awq", "int8_wo" and "int4_wo" too; no recipe asks for them.
QFORMATS = ("nvfp4", "fp8", "int8_sq", "int4_awq", "w4a8_awq", "int8_wo", "int4_wo", "full_prec")
LORA_MODULES = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")
Json = dict[str, Any]  # Any: documents of TensorRT-LLM's, read key by key


@dataclass(frozen=True)
class Release:
    """Where the programs lie: `bin` belongs on the path. `versions` is what Python there says is installed."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def versions(self) -> Path:
        return self.root / "versions.json"

    @property
    def examples(self) -> Path:
        return self.root / "examples"

    @property
    def docker_log(self) -> Path:
        return self.root / "docker.log"

    def replace_program(self, name: str, script: str) -> None:
        """By a shell script."""
        program = self.bin / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def override_build(self, changes: Json) -> None:
        """What trtllm-build writes into build_config instead of what it was told; nested keys are merged."""
        (self.bin / "trtllm-build.json").write_text(json.dumps(changes))

    def install_version(self, name: str, version: str) -> None:
        installed = json.loads(self.versions.read_text()) if self.versions.exists() else {}
        self.versions.write_text(json.dumps({**installed, name: version}) + "\n")


def install(root: Path) -> Release:
    release = Release(root)
    for folder in ("quantization", "models/core/llama", "eagle", "medusa"):
        (release.examples / folder).mkdir(parents=True)
        name = "quantize.py" if folder == "quantization" else "convert_checkpoint.py"
        (release.examples / folder / name).symlink_to(Path(__file__))
    release.bin.mkdir()
    python = shlex.quote(sys.executable)
    # What is installed is told from a file, for here it is not. -S: nothing that is installed is needed, or read.
    answer = '"$(dirname "$0")/../versions.json"'
    release.replace_program("python3", f'if [ "$1" = -c ]; then exec cat {answer}; fi\nexec {python} -S "$@"')
    release.replace_program("trtllm-build", f'exec {python} -S {shlex.quote(__file__)} trtllm-build "$0" "$@"')
    release.replace_program("nvidia-smi", f"cat <<'END'\n{GPUS}END")
    # The real one needs a daemon; this runs the command behind the image's name, and notes what it was told.
    note = f"printf '%s\\n' \"$*\" >> {shlex.quote(str(release.docker_log))}"
    release.replace_program("docker", f'{note}\nwhile [ "$1" != {IMAGE} ]; do shift; done\nshift\nexec "$@"')
    release.install_version("tensorrt_llm", VERSION)
    release.install_version("tensorrt", TENSORRT)
    return release


def make_parser(program: str) -> argparse.ArgumentParser:
    """The options of quantize.py, trtllm-build, or the convert_checkpoint.py of llama, eagle or medusa."""
    parser = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    parsers = {"quantize.py": _declare_quantize, "trtllm-build": _declare_build}
    parsers.get(program, _declare_convert)(parser)
    if program == "eagle":
        _declare(parser, "eagle_model_dir")
        _declare_numbers(parser, "max_draft_len", "num_eagle_layers", "max_non_leaves_per_layer")
    elif program == "medusa":
        _declare(parser, "medusa_model_dir", "medusa_hidden_act", "model_type")
        _declare_numbers(parser, "num_medusa_heads", "num_medusa_layers", "max_medusa_token_len")
    return parser


def _declare(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name}")


def _declare_numbers(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(f"--{name}", type=int, default=None if name == "opt_num_tokens" else 0)


def _declare_quantize(parser: argparse.ArgumentParser) -> None:
    _declare(parser, "model_dir", "output_dir", "calib_dataset", "medusa_model_dir", "medusa_hidden_act")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--qformat", default="full_prec", choices=QFORMATS)
    parser.add_argument("--kv_cache_dtype", default=None, choices=("int8", "fp8"))
    parser.add_argument("--export_format", default="tensorrt_llm", choices=("tensorrt_llm", "hf"))
    parser.add_argument("--device_map", default="auto", choices=("auto", "sequential", "cpu", "gpu"))
    for name in ("tp_size", "pp_size", "cp_size"):
        parser.add_argument(f"--{name}", type=int, default=1)
    numbers = ("batch_size", "calib_size", "calib_max_seq_length", "awq_block_size", "tokenizer_max_seq_length", "seed")
    _declare_numbers(parser, *numbers, "num_medusa_heads", "num_medusa_layers", "max_draft_len")


def _declare_convert(parser: argparse.ArgumentParser) -> None:
    _declare(parser, "model_dir", "output_dir", "quant_ckpt_path")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    for name in ("tp_size", "pp_size", "workers"):
        parser.add_argument(f"--{name}", type=int, default=1)
    for name in ("use_weight_only", "int8_kv_cache", "load_by_shard", "use_parallel_embedding"):
        parser.add_argument(f"--{name}", action="store_true")


def _declare_build(parser: argparse.ArgumentParser) -> None:
    _declare(parser, "checkpoint_dir", "output_dir", "input_timing_cache", "output_timing_cache")
    limits = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width", "max_input_len", "opt_num_tokens")
    _declare_numbers(parser, *limits, "workers", "max_lora_rank", "max_draft_len")
    parser.add_argument("--tokens_per_block", type=int, default=32)
    parser.add_argument("--kv_cache_type", default="paged", choices=("continuous", "paged", "disabled"))
    parser.add_argument("--speculative_decoding_mode", choices=tuple(MODES))
    parser.add_argument("--lora_dir", nargs="+")
    parser.add_argument("--lora_target_modules", nargs="+", choices=LORA_MODULES)
    parser.add_argument("--gemm_plugin", choices=(*PLUGIN, "fp8", "nvfp4"))
    parser.add_argument("--lora_plugin", choices=PLUGIN)
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"):
        parser.add_argument(f"--{name}", choices=("fp8", "disable"))
    for name in ("reduce_fusion", "user_buffer", "multiple_profiles"):
        parser.add_argument(f"--{name}", default="disable", choices=SWITCH)
    for name in ("context_fmha", "remove_input_padding", "use_paged_context_fmha", "use_fp8_context_fmha"):
        parser.add_argument(f"--{name}", default="enable", choices=SWITCH)


def _quantize(options: argparse.Namespace) -> None:
    algorithms = ALGORITHMS.get(options.qformat), (options.kv_cache_dtype or "").upper() or None
    if options.export_format == "hf":
        quantization = {"quant_algo": algorithms[0], "kv_cache_quant_algo": algorithms[1]}
        _write(Path(options.output_dir) / "hf_quant_config.json", {"quantization": quantization})
        return
    _write_checkpoint(options, *algorithms)


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


def main(argv: Sequence[str]) -> None:
    if argv[1:2] == ["trtllm-build"]:
        changes = Path(f"{argv[2]}.json")
        overrides = json.loads(changes.read_text()) if changes.exists() else {}
        _build(make_parser("trtllm-build").parse_args(argv[3:]), overrides)
        return
    script = Path(argv[0])
    program = script.name if script.name == "quantize.py" else script.parent.name
    options = make_parser(program).parse_args(argv[1:])
    sys.stdout.write(f"{program} writes {options.output_dir}\n")
    (_quantize if program == "quantize.py" else _convert)(options)


if __name__ == "__main__":
    main(sys.argv)

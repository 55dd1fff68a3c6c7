"""The content of an engine directory as one document, and as lines to read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from engines.directory.engine_config import CONFIG, EngineConfig, NotAnEngine, read_engine_config
from engines.directory.manifest import Manifest, find_manifest, list_files
from engines.trtllm.release import name_architecture, name_cache, name_weights

WIDTH = 30  # of the longest setting's name
NOTHING = "-"

Json: TypeAlias = dict[str, Any]  # Any: a document for programs, written and never read back


def inspect_directory(directory: Path) -> Json:
    """Reads a directory: `engine` is None in PyTorch's flow, `manifest` if missing. Raises NotAnEngine without both."""
    if not directory.is_dir():
        raise NotAnEngine(f"{directory}: not a directory")
    manifest = find_manifest(directory)
    if manifest is None or (directory / CONFIG).is_file():
        engine = _describe_engine(read_engine_config(directory))
    else:
        engine = None
    files = {name: path.stat().st_size for name, path in list_files(directory).items()}
    return {"engine": engine, "manifest": None if manifest is None else _describe_manifest(manifest), "files": files}


def show_inspection(document: Json) -> Iterator[str]:
    for title, section in (("engine", document["engine"]), ("manifest", document["manifest"])):
        if section is None:
            yield f"{title}: none"
            continue
        yield f"{title}:"
        yield from (f"  {name:<{WIDTH}} {_show(value)}" for name, value in section.items())
    yield "files:"
    yield from (f"  {name:<{WIDTH}} {size:,} bytes" for name, size in document["files"].items())


def _describe_engine(config: EngineConfig) -> Json:
    return {
        "tensorrt_llm": config.version,
        "architecture": config.architecture,
        "weights": name_weights(config.quant_algo, config.dtype),
        "kv_cache": name_cache(config.kv_cache_quant_algo),
        "dtype": config.dtype,
        "tp": config.tp,
        "pp": config.pp,
        **config.settings,
    }


def _describe_manifest(manifest: Manifest) -> Json:
    builder, source, recipe = manifest.builder, manifest.source, manifest.recipe
    capability = builder.capability
    return {
        "recipe": manifest.recipe_name,
        "flow": recipe.flow,
        "model": recipe.model.name,
        "precision": f"{recipe.precision.weights} weights, {recipe.precision.kv_cache} KV cache",
        "parallel": f"tp {recipe.parallel.tp}, pp {recipe.parallel.pp}",
        "built_at": manifest.built_at,
        "build_s": manifest.build_s,
        "tensorrt_llm": builder.tensorrt_llm,
        "tensorrt": builder.tensorrt,
        "image": builder.image,
        "gpu": f"{builder.gpu_name}, {name_architecture(capability)} ({capability})" if capability else None,
        "driver": builder.driver,
        "checkpoint": source.path,
        "checkpoint_sha256": source.sha256,
        "tokenizer_sha256": source.tokenizer_sha256,
        "chat_template_sha256": source.chat_template_sha256,
        "eos_ids": list(source.eos_ids),
        "serve": list(manifest.serve) if manifest.serve else None,
    }


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or NOTHING
    return NOTHING if value is None else str(value)

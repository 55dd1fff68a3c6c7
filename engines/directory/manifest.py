"""The manifest of an engine directory: its sources, its builder, its commands, and marks of its files.

It is written last, so a directory without one was not finished. TensorRT-LLM compares none of it at loading an engine.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias

import orjson
from pydantic import ConfigDict, TypeAdapter

from engines.directory.engine_config import CONFIG
from engines.directory.json_file import parse_json_file
from engines.recipes.recipe import STRICT, Recipe, Section
from engines.trtllm.torch_flow import CHECKPOINT, LLM_ARGS

Hash: TypeAlias = Callable[[Path], str]  # of one file: SHA-256 in hexadecimal
MANIFEST = "crossover-manifest.json"
# The files that Engine.save and quantize.py write. A build's log or a timing cache may change.
PATTERNS = (
    *(CONFIG, "rank*.engine", "rank*_managed_weights.safetensors", "quant_cfg.json"),
    *(LLM_ARGS, f"{CHECKPOINT}/*"),
)


class NoManifest(Exception):
    """The manifest is missing or cannot be read; the message gives the reason."""


class FileMark(Section):
    bytes: int
    sha256: str


class Source(Section):
    """The checkpoint, identified by its content; the gateway has to use the same tokenizer and template."""

    path: str
    sha256: str
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    eos_ids: tuple[int, ...]


class Builder(Section):
    """`tensorrt` and the GPU's facts are None where they were not found; `image` where the build ran on the host."""

    crossover: str
    tensorrt_llm: str
    tensorrt: str | None
    image: str | None
    capability: str | None
    gpu_name: str | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`recipe` has all its defaults; `built_at` is UTC in ISO 8601; `commands` are those that ran, in order."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    schema: Literal[1] = 1
    recipe_name: str
    recipe: Recipe
    builder: Builder
    source: Source
    built_at: str
    build_s: float
    commands: tuple[tuple[str, ...], ...]
    serve: tuple[str, ...] | None
    files: Mapping[str, FileMark]


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def read_manifest(directory: Path) -> Manifest:
    """Reads the directory's manifest. Raises NoManifest."""
    return parse_json_file(directory / MANIFEST, _ADAPTER, NoManifest)


def find_manifest(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except NoManifest:
        return None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    document = _ADAPTER.dump_python(manifest, mode="json")
    path = directory / MANIFEST
    part = path.with_suffix(".part")
    part.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    part.replace(path)  # never half of it


def list_files(directory: Path) -> dict[str, Path]:
    """The files of an engine that a manifest marks, by their names in it."""
    found = {path for pattern in PATTERNS for path in directory.glob(pattern) if path.is_file()}
    return {path.relative_to(directory).as_posix(): path for path in sorted(found)}


def mark_files(directory: Path, hash_one: Hash) -> dict[str, FileMark]:
    return {
        name: FileMark(bytes=path.stat().st_size, sha256=hash_one(path)) for name, path in list_files(directory).items()
    }


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The manifest of an engine directory: what it was built from, by what, on what, and what its files are.

Written last, so a directory without one was not finished. TensorRT-LLM itself compares none of this when it loads one.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from engines.directory.engine_config import CONFIG
from engines.recipes.recipe import STRICT, Recipe
from engines.trtllm.torch_flow import CHECKPOINT, LLM_ARGS

MANIFEST = "crossover-manifest.json"
# What Engine.save and quantize.py leave beside the plans; a build's log or a timing cache may change as it likes.
PATTERNS = (
    *(CONFIG, "rank*.engine", "rank*_managed_weights.safetensors", "quant_cfg.json"),
    *(LLM_ARGS, f"{CHECKPOINT}/*"),
)


class NoManifest(Exception):
    """There is none, or none that can be read; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which checkpoint, by its content; tokenizer and template are those that the gateway has to use too."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    path: str
    sha256: str
    tokenizer_sha256: str | None
    chat_template_sha256: str | None
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """`tensorrt` and the GPU's facts are None where nothing told them; `image` where the build ran on the host."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    crossover: str
    tensorrt_llm: str
    tensorrt: str | None
    image: str | None
    capability: str | None
    gpu_name: str | None
    driver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`recipe` is the whole recipe with its defaults; `built_at` is UTC in ISO 8601; `commands` what ran, in order."""

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
    """Raises NoManifest."""
    path = directory / MANIFEST
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except OSError as exc:
        raise NoManifest(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        error = exc.errors()[0]
        raise NoManifest(f"{path}: {'.'.join(map(str, error['loc'])) or 'the file'}: {error['msg']}") from exc


def write_manifest(directory: Path, manifest: Manifest) -> None:
    document = _ADAPTER.dump_python(manifest, mode="json")
    path = directory / MANIFEST
    part = path.with_suffix(".part")
    part.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    part.replace(path)  # whole or not there


def list_files(directory: Path) -> list[Path]:
    """The files of an engine that a manifest marks."""
    return sorted({path for pattern in PATTERNS for path in directory.glob(pattern) if path.is_file()})


def name_file(directory: Path, path: Path) -> str:
    """As a manifest names it."""
    return path.relative_to(directory).as_posix()


def mark_files(directory: Path, read: Callable[[Path], str]) -> dict[str, FileMark]:
    """`read` hashes one file."""
    return {
        name_file(directory, path): FileMark(bytes=path.stat().st_size, sha256=read(path))
        for path in list_files(directory)
    }


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

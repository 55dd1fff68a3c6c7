"""Reads crossover.yaml, lets the environment override a few keys, refuses contradictions, returns Settings.

Every problem is reported at once, one `key.path: problem` line each.
"""

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.configuration.file import ConfigurationFile
from gateway.engine_kinds import ENGINE_KINDS
from gateway.settings import ModelSettings, Settings

FILE = TypeAdapter(ConfigurationFile)
WORDS = {"unexpected_keyword_argument": "unknown key", "extra_forbidden": "unknown key", "missing": "required"}
RELAYED_KINDS = [name for name, kind in ENGINE_KINDS.items() if not kind.settings.takes_tokens]
OVERRIDES = {"CROSSOVER_LISTEN": "listen", "CROSSOVER_OPERATOR_KEY": "operator_key", "CROSSOVER_LOG_LEVEL": "log_level"}


class SettingsError(Exception):
    """The configuration cannot be used; `problems` holds one `key.path: problem` line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """Returns the file that `crossover serve` reads when none is named: CROSSOVER_CONFIG, else crossover.yaml here."""
    return Path(_environment(environ).get("CROSSOVER_CONFIG") or "crossover.yaml")


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Reads settings from one file and the environment. Raises SettingsError, whose problems do not name the file."""
    try:
        document = yaml.load(path.read_bytes(), Loader=_UniqueKeyLoader)  # a subclass of SafeLoader
    except OSError as exc:
        raise SettingsError([exc.strerror or str(exc)]) from exc
    except yaml.YAMLError as exc:
        raise SettingsError([f"not YAML: {' '.join(str(exc).split())}"]) from exc
    return parse_settings(document, folder=path.parent, environ=environ)


def parse_settings(document: object, folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Returns settings from a parsed file; relative paths in it start at `folder`. Raises SettingsError."""
    if not isinstance(document, dict):
        raise SettingsError(["the file must be a mapping with at least the key models"])
    overridden = document | _overrides(_environment(environ))
    try:
        file = FILE.validate_python(overridden)
    except ValidationError as exc:
        raise SettingsError([_describe(error) for error in exc.errors()]) from exc
    settings = _resolve_paths(file, folder or Path())
    if problems := list(_find_contradictions(settings)):
        raise SettingsError(problems)
    return settings


def _describe(error: ErrorDetails) -> str:
    """Returns one pydantic error as `key.path: problem`, in the file's own words."""
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")  # pydantic's own mark, which is no key
    message = error["msg"]
    return f"{path}: {WORDS.get(error['type']) or message[:1].lower() + message[1:]}"


def _environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ  # noqa: TID251 - this is where the environment is read


def _overrides(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: environ[variable] for variable, key in OVERRIDES.items() if environ.get(variable)}


def _resolve_paths(file: ConfigurationFile, folder: Path) -> Settings:
    """Resolves relative paths of the file against its own directory."""
    models = tuple(
        replace(model, tokenizer=model.tokenizer and folder / model.tokenizer.expanduser()) for model in file.models
    )
    runs, state = (folder / path.expanduser() for path in (file.runs_folder, file.state_folder))
    arrivals = file.arrivals_file and folder / file.arrivals_file.expanduser()
    return replace(file, models=models, runs_folder=runs, state_folder=state, arrivals_file=arrivals)


def _find_contradictions(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    if limits.max_bodies_bytes < limits.max_body_bytes:
        room = limits.max_bodies_bytes
        yield f"limits.max_bodies_bytes: must not be below max_body_bytes ({limits.max_body_bytes}), is {room}"
    if settings.responses.keep == "memory" and settings.workers > 1:
        yield f"responses.keep: memory is each worker's own; with {settings.workers} workers it has to be file"
    counts = Counter(model.id for model in settings.models)
    for index, model in enumerate(settings.models):
        if counts[model.id] > 1:
            yield f"models.{index}.id: {model.id!r} is used {counts[model.id]} times"
        for problem in _find_model_contradictions(model):
            yield f"models.{index}.{problem}"


def _find_model_contradictions(model: ModelSettings) -> Iterator[str]:
    yield from _find_lane_contradictions(model)
    if model.policy is None and len(model.chosen_from) > 1:
        yield f"policy: required to choose between {', '.join(model.chosen_from)}"
    for name, policy in (("policy", model.policy), ("dry", model.dry)):
        if policy is None:
            continue
        if len(model.chosen_from) == 1:
            yield f"{name}: there is nothing to choose, only {model.chosen_from[0]} takes what is routed; remove it"
        else:
            yield from (f"{name}.{key}: {problem}" for key, problem in policy.problems(model.chosen_from))


def _find_lane_contradictions(model: ModelSettings) -> Iterator[str]:
    if model.tokenizer is not None:
        if not model.tokenizer.is_dir():
            yield f"tokenizer: {model.tokenizer} is not a directory"
        return
    token_only = next((backend for backend in model.backends.values() if not backend.speaks_openai), None)
    if token_only is not None:
        yield f"tokenizer: required, backend {token_only.name} of kind {token_only.kind} takes token ids only"
    elif all(backend.takes_tokens for backend in model.backends.values()):
        yield f"tokenizer: required, unless a backend is of kind {' or '.join(RELAYED_KINDS)}"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a repeated key: PyYAML would silently keep the last one, and a lost threshold would be hard to see."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
        return super().construct_mapping(node, deep)

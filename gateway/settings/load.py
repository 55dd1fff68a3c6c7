"""Reads crossover.yaml, lets the environment override a few keys, refuses contradictions, returns Settings.

Every problem is reported at once, one `key.path: problem` line each.
"""

import os
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.settings.file import BACKEND_TAGS, ConfigurationFile, ModelSection
from gateway.settings.forms import split_listen
from gateway.settings.slices import ModelSettings, RelaySettings, Settings, TritonSettings

OVERRIDES = {
    "CROSSOVER_LISTEN": "listen",
    "CROSSOVER_OPERATOR_KEY": "operator_key",
    "CROSSOVER_LOG_LEVEL": "log_level",
}


class SettingsError(Exception):
    """The configuration cannot be used; `problems` holds one `key.path: problem` line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """The file `crossover serve` reads when none is named: CROSSOVER_CONFIG, else crossover.yaml here."""
    return Path(_environment(environ).get("CROSSOVER_CONFIG") or "crossover.yaml")


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from one file and the environment. Raises SettingsError, whose problems leave naming the file to whoever
    tells them.
    """
    try:
        document = yaml.load(path.read_bytes(), Loader=_UniqueKeyLoader)  # a subclass of SafeLoader
    except OSError as exc:
        raise SettingsError([exc.strerror or str(exc)]) from exc
    except yaml.YAMLError as exc:
        raise SettingsError([f"not YAML: {' '.join(str(exc).split())}"]) from exc
    return parse_settings(document, folder=path.parent, environ=environ)


def parse_settings(document: object, folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from a parsed file; relative paths in it start at `folder`. Raises SettingsError."""
    if not isinstance(document, dict):
        raise SettingsError(["the file must be a mapping with at least the key models"])
    overridden = document | _overrides(_environment(environ))
    try:
        file = ConfigurationFile.model_validate(overridden)
    except ValidationError as exc:
        raise SettingsError([describe_problem(error) for error in exc.errors()]) from exc
    settings = _slice_file(file, folder or Path())
    if problems := list(_find_contradictions(settings)):
        raise SettingsError(problems)
    return settings


def describe_problem(error: ErrorDetails) -> str:
    """One pydantic error as `key.path: problem`, in the file's own words."""
    return f"{key_path(error)}: {_WORDS.get(error['type']) or _lower_first(error['msg'])}"


def key_path(error: ErrorDetails) -> str:
    """Where in the file an error lies, without pydantic's own marks."""
    return ".".join(str(part) for part in error["loc"] if part not in BACKEND_TAGS and part != "[key]")


_WORDS = {"extra_forbidden": "unknown key", "missing": "required"}


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ  # noqa: TID251 - this is where the environment is read


def _overrides(environ: Mapping[str, str]) -> dict[str, str]:
    return {key: environ[variable] for variable, key in OVERRIDES.items() if environ.get(variable)}


def _slice_file(file: ConfigurationFile, folder: Path) -> Settings:
    host, port = split_listen(file.listen)
    return Settings(
        listen_host=host,
        listen_port=port,
        models=tuple(_slice_model(model, folder) for model in file.models),
        workers=file.workers,
        limits=file.limits.slice(),
        probe=file.probe.slice(),
        evidence=file.evidence.slice(),
        streams=file.streams.slice(),
        log_level=file.log_level,
        operator_key=file.operator_key,
        runs_folder=folder / Path(file.runs_folder).expanduser(),
    )


def _slice_model(model: ModelSection, folder: Path) -> ModelSettings:
    return ModelSettings(
        id=model.id,
        tokenizer=folder / Path(model.tokenizer).expanduser() if model.tokenizer else None,
        backends={name: backend.slice(name) for name, backend in model.backends.items()},
        policy=model.policy.slice() if model.policy else None,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        reasoning_field=model.reasoning_field,
        relay_paths=frozenset(model.relay_paths),
    )


def _find_contradictions(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    if limits.max_bodies_bytes < limits.max_body_bytes:
        room = limits.max_bodies_bytes
        yield f"limits.max_bodies_bytes: must not be below max_body_bytes ({limits.max_body_bytes}), is {room}"
    counts = Counter(model.id for model in settings.models)
    for index, model in enumerate(settings.models):
        if counts[model.id] > 1:
            yield f"models.{index}.id: {model.id!r} is used {counts[model.id]} times"
        for problem in _find_model_contradictions(model):
            yield f"models.{index}.{problem}"


def _find_model_contradictions(model: ModelSettings) -> Iterator[str]:
    yield from _find_lane_contradictions(model)
    if model.policy is None:
        if len(model.chosen_from) > 1:
            yield f"policy: required to choose between {', '.join(model.chosen_from)}"
    elif len(model.chosen_from) == 1:
        yield f"policy: there is nothing to choose, only {model.chosen_from[0]} takes what is routed; remove it"
    else:
        yield from (f"policy.{key}: {problem}" for key, problem in model.policy.problems(model.chosen_from))


def _find_lane_contradictions(model: ModelSettings) -> Iterator[str]:
    if model.tokenizer is not None:
        if not model.tokenizer.is_dir():
            yield f"tokenizer: {model.tokenizer} is not a directory"
        return
    token_only = [name for name, backend in model.backends.items() if isinstance(backend, TritonSettings)]
    if token_only:
        yield f"tokenizer: required, backend {token_only[0]} of kind triton takes token ids only"
    elif not any(isinstance(backend, RelaySettings) for backend in model.backends.values()):
        yield "tokenizer: required, unless a backend is of kind relay"


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; a threshold lost that way would be hard to see."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
        return super().construct_mapping(node, deep)

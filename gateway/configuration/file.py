"""The shape of crossover.yaml: Settings, with backends read by their kind and a model's policy by its own.

settings/forms.py has the forms of single values; load.py finds contradictions between keys.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from gateway.core import Policy
from gateway.engine_kinds import ENGINE_KINDS
from gateway.routing.policies import read_policy
from gateway.settings import NAME_KEY, BackendSettings, Folder, ModelSettings, Name, Settings, make_problem

*FIRST_KINDS, LAST_KIND = (f"kind: {kind}" for kind in ENGINE_KINDS)


def _hand_out_names(sections: object) -> object:
    if not isinstance(sections, dict):
        return sections
    return {name: {**keys, NAME_KEY: name} if isinstance(keys, dict) else keys for name, keys in sections.items()}


def _read_backend(section: object) -> BackendSettings:
    """Reads a backend's section. Raises ValidationError, which pydantic reports as if it were part of the model's."""
    keys = dict(section) if isinstance(section, dict) else {}
    kind = ENGINE_KINDS.get(str(keys.pop("kind", None)))
    if kind is None:
        raise make_problem(f"needs {', '.join(FIRST_KINDS)} or {LAST_KIND}")
    settings: BackendSettings = TypeAdapter(kind.settings).validate_python(keys)
    return settings


def _refuse_none(models: object) -> object:
    if models == []:
        raise make_problem("needs at least one entry")
    return models


def _read_policy(section: object) -> Policy | None:
    return None if section is None else read_policy(section)


Backends: TypeAlias = Annotated[
    dict[Name, Annotated[BackendSettings, PlainValidator(_read_backend)]],
    Field(min_length=1),
    BeforeValidator(_hand_out_names),
]


@dataclass(frozen=True, slots=True)
class ModelSection(ModelSettings):
    """One entry of `models`."""

    backends: Backends
    policy: Annotated[Policy | None, PlainValidator(_read_policy)] = None
    dry: Annotated[Policy | None, PlainValidator(_read_policy)] = None


@dataclass(frozen=True, slots=True)
class ConfigurationFile(Settings):
    """The whole file."""

    models: Annotated[tuple[ModelSection, ...], BeforeValidator(_refuse_none)]
    state_folder: Folder = Path("state")

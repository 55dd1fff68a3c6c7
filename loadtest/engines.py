"""Which engines stand behind the two backends, by what the gateway's /version tells of them. Pure.

In: its JSON, at the start of a run and at the end. Out: what identifies the engines, or that they were changed.
"""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from loadtest.errors import EnginesChanged

Engines: TypeAlias = Mapping[str, Mapping[str, str | int]]  # by backend; what is not known is not there


def read_engines(version: Mapping[str, object], model: str, backends: tuple[str, str]) -> Engines:
    """Empty for a gateway that tells nothing of its engines."""
    told = _object(_object(version.get("models")).get(model))
    known = {name: dict(_read_fields(_object(told.get(name)))) for name in backends}
    return {name: fields for name, fields in known.items() if fields}


def confirm_same(start: Engines, end: Engines) -> Engines:
    """What both together know. Raises EnginesChanged: half of the cells would be another engine's."""
    changes = [
        f"{name} {field} was {old}, is {end[name][field]}"
        for name, fields in start.items()
        for field, old in fields.items()
        if end.get(name, {}).get(field, old) != old
    ]
    if changes:
        raise EnginesChanged(f"ENGINES CHANGED while measuring: {'; '.join(changes)}")
    return {name: {**end.get(name, {}), **start.get(name, {})} for name in {**start, **end}}


def _read_fields(fields: Mapping[str, object]) -> Iterator[tuple[str, str | int]]:
    for name, value in fields.items():
        if isinstance(value, str | int):
            yield name, value


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}

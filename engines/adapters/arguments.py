"""An engine's own arguments, from the file that the parameter `engine_args` names.

In: a JSON or YAML file and the names that an engine knows. Out: keyword arguments.
"""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml


class ArgumentError(ValueError):
    """The operator has to mend the file; the message is the whole report."""


def read_arguments(
    parameters: Mapping[str, str], known: Collection[str] | None = None
) -> dict[str, Any]:  # as the engine types them
    """Reads arguments, none without the parameter. Dashes count as underscores. Raises ArgumentError with file and key.

    The model is not named here. Without `known`, the engine itself has to refuse unknown names.
    """
    path = parameters.get("engine_args")
    if not path:
        return {}
    given = _load(Path(path))
    arguments = {str(name).replace("-", "_"): value for name, value in given.items()}
    if "model" in arguments:
        raise ArgumentError(f"{path}: model is not set here: the parameter model_dir names it")
    for name in arguments:
        if known is not None and name not in known:
            raise ArgumentError(f"{path}: {name} is no argument of this engine{_hint(name, known)}")
    return arguments


def _load(path: Path) -> Mapping[str, Any]:  # as in the file
    try:
        given = yaml.safe_load(path.read_text())  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ArgumentError(f"cannot read engine_args: {path}: {exc}") from exc
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ArgumentError(f"{path}: expected names and values, got {type(given).__name__}")
    return given


def _hint(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""

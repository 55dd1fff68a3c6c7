"""A JSON file of an engine or a checkpoint, parsed by its model. In: a path. Out: the value, or the caller's error."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

Value = TypeVar("Value")


def parse_json_file(path: Path, kind: TypeAdapter[Value], error: Callable[[str], Exception]) -> Value:
    """Parses a file. Raises `error` with the path and the reason, for a wrong file with its first wrong field."""
    try:
        return kind.validate_json(path.read_bytes())
    except OSError as exc:
        raise error(f"{path}: {exc.strerror}") from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        raise error(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from exc

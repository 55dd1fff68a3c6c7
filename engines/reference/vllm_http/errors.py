"""vLLM's errors: status, type, message and parameter.

In: a cause. Out: the JSON body that vLLM would send.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError


class WireError(Exception):
    """Is sent as `{"error": {...}}` with its status."""

    def __init__(
        self,
        message: str,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    @property
    def body(self) -> dict[str, object]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status.value}
        return {"error": error}


class Invalid(WireError, ValueError):
    """A value that vLLM's own checks refuse; the message ends with parameter and value. Also raised inside pydantic
    models.
    """

    def __init__(self, message: str, parameter: str | None = None, value: object = None) -> None:
        shown = "" if value is None else f", value={value}"
        super().__init__(message if parameter is None else f"{message} (parameter={parameter}{shown})", param=parameter)


def unknown_model(name: str, served: str) -> WireError:
    message = f"The model `{name}` does not exist. Valid aliases: {served}."
    return WireError(message, status=HTTPStatus.NOT_FOUND, kind="NotFoundError", param="model")


def bad_request(finding: str, param: str | None = None) -> WireError:
    return WireError(f"1 validation error:\n  {finding}", kind="Bad Request", param=param)


def invalid_json(exc: json.JSONDecodeError) -> WireError:
    finding = {
        "type": "json_invalid",
        "loc": f"body.{exc.pos}",
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": exc.msg},
    }
    return bad_request(str(finding), f"body.{exc.pos}")


def invalid_body(exc: ValidationError) -> WireError:
    """pydantic's errors in vLLM's words; a WireError among them keeps its message."""
    errors = exc.errors(include_url=False)
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, WireError):
            return cause
    listed = "".join(f"\n  {_finding(error)}" for error in errors[:10])
    message = f"{len(errors)} validation error{'s' if len(errors) > 1 else ''}:{listed}"
    return WireError(message, kind="Bad Request", param=_param(errors[0]["loc"]))


def _finding(error: Mapping[str, Any]) -> dict[str, Any]:  # pydantic's error details: any values
    value = error["input"]
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, (list, dict)) else str(value)[:200]
    return dict(error) | {"loc": _param(error["loc"]), "input": shown}


def _param(loc: tuple[int | str, ...]) -> str:
    # Without pydantic's names of union branches: `prompt.list[constrained-int].0` is prompt.0.
    return ".".join(["body", *(str(part) for part in loc if "[" not in str(part) and part != "str")])


SCALE_OUT_OFF = WireError(
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    status=HTTPStatus.FORBIDDEN,
    kind="PermissionDeniedError",
)

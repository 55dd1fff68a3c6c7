"""vLLM's errors: status, type, parameter and message; the messages of malformed bodies are shorter than vLLM's.

In: a cause. Out: the JSON body.
"""

from http import HTTPStatus

from pydantic import ValidationError


class WireError(Exception):
    """An error that is sent as `{"error": {...}}` with its status."""

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


def bad_request(problem: str, param: str | None = None) -> WireError:
    return WireError(f"1 validation error: {problem}", kind="Bad Request", param=param)


def invalid_body(exc: ValidationError) -> WireError:
    """The first of pydantic's errors; a WireError among them keeps its message."""
    errors = exc.errors(include_url=False)
    for error in errors:
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, WireError):
            return cause
    # Without pydantic's names of union branches: `prompt.list[constrained-int].0` is prompt.0.
    path = [str(part) for part in errors[0]["loc"] if "[" not in str(part) and part != "str"]
    return bad_request(errors[0]["msg"], ".".join(["body", *path]))


SCALE_OUT_OFF = WireError(
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    status=HTTPStatus.FORBIDDEN,
    kind="PermissionDeniedError",
)

"""The error taxonomy: every way a request can fail, each with the HTTP status and OpenAI type and code it becomes.

Rooms raise these (or hand them to a sink); only openai/errors.py turns them into JSON. Imports nothing.
Not errors: a client that leaves (cancellation) and finish_reason "length".

    GatewayError                      never raised itself
      InvalidRequest            400   a bad or unsupported field; `param` names it
        ContextLengthExceeded   400   prompt, or prompt and max_tokens, beyond the model's context
        NeedRefused             400   an engine does not support what only some do; another backend may be tried
        RequestQuarantined      400   two engines were lost with such a request, a short while ago
        PolicyChanged           409   the policy to replace is no longer the one in force
      LastBackend             409   it is the only one left that gets requests
        CalibrationRunning      409   there is one already
      Unauthorized            401   no key, or one that is not valid
      PermissionDenied        403   a valid key whose scopes do not include this
        ForeignSite           403   called by another host's name, or by another site's page
      ModelNotFound             404
      ResponseNotFound          404   not kept, or not any more
      CalibrationNotFound       404
      CalibrationUnavailable    503   its folder cannot be written, or its process not started
      Overloaded                429   we shed; nothing was started
        RateLimited             429   a key is at one of its limits
          BudgetSpent           429   and will be until the day ends
      BackendError              502   an engine failed
        BackendLost             502   it went away after it had begun to answer
        BackendUnavailable      503   refused, not ready or lost before it answered: the only one safe to try elsewhere
          BackendFull           503   well, but it takes no more requests at the moment
        BackendTimeout          504   silent for longer than the configured limit
        BackendProtocolError    502   it answered nonsense
"""

from typing import ClassVar


class GatewayError(Exception):
    """The base of all errors. Clients see `message`, so it never holds a prompt or an engine's raw body."""

    status: ClassVar[int] = 500
    is_down: ClassVar[bool] = False  # whether the backend it came from should not be chosen before it passes a probe
    type: ClassVar[str] = "internal_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(GatewayError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class NeedRefused(InvalidRequest):
    """An engine does not support `need`, one of core.Need; another backend may be tried."""

    def __init__(self, message: str, *, need: str, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.need = need


class RequestQuarantined(InvalidRequest):
    """Two engines were lost with such a request. A 400, because official clients send a 5xx again by themselves."""

    code = "request_quarantined"


class PolicyChanged(InvalidRequest):
    status = 409
    code = "policy_changed"


class LastBackend(InvalidRequest):
    status = 409
    code = "last_backend"


class CalibrationRunning(InvalidRequest):
    status = 409
    code = "calibration_running"


class Unauthorized(GatewayError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(GatewayError):
    status = 403
    type = "permission_error"
    code = "missing_scope"


class ForeignSite(PermissionDenied):
    """A browser's page from elsewhere, or one that could be: its host's name is not the gateway's."""

    code = "foreign_site"


class ModelNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "model_not_found"


class ResponseNotFound(GatewayError):
    """A response that is not kept, or not any more."""

    status = 404
    type = "invalid_request_error"
    code = "response_not_found"


class CalibrationNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "calibration_not_found"


class CalibrationUnavailable(GatewayError):
    status = 503
    code = "calibration_unavailable"


class Overloaded(GatewayError):
    """`retry_after_s`: when to send it again. `fields`: further header fields of its answer."""

    status = 429
    type = "overloaded_error"
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: int = 1, fields: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.fields = fields


class RateLimited(Overloaded):
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class BudgetSpent(RateLimited):
    type = "insufficient_quota"
    code = "insufficient_quota"


class BackendError(GatewayError):
    status = 502
    type = "backend_error"
    code = "backend_error"


class BackendLost(BackendError):
    code = "backend_lost"
    is_down = True


class BackendUnavailable(BackendError):
    """`was_lost`: the backend had the request, which may be the reason; else it has refused it, or lives."""

    status = 503
    is_down = True
    code = "backend_unavailable"

    def __init__(self, message: str, *, was_lost: bool = True) -> None:
        super().__init__(message)
        self.was_lost = was_lost


class BackendFull(BackendUnavailable):
    is_down = False
    code = "backend_full"


class BackendTimeout(BackendError):
    status = 504
    code = "backend_timeout"


class BackendProtocolError(BackendError):
    code = "backend_protocol_error"


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class HeadTooLarge(GatewayError):
    status = 431
    type = "invalid_request_error"
    code = "request_head_too_large"


class RequestTimeout(GatewayError):
    """A head or a body that does not arrive in time; official clients send it again."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class PathNotFound(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, allowed: str, message: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class ShuttingDown(GatewayError):
    """The gateway shuts down. It is no BackendUnavailable: there is nowhere else to try."""

    status = 503
    type = "overloaded_error"
    code = "shutting_down"


class InternalError(GatewayError):
    """A fault of the gateway itself; the cause goes to the log, never to the client."""

    def __init__(self, message: str = "The gateway failed; see its log for this request's id.") -> None:
        super().__init__(message)

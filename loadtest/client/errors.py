"""Why a measurement ends without a result. Each error has the exit code of its command. Imports nothing."""

from typing import ClassVar


class MeasurementError(Exception):
    """The base class of these errors; it is never raised itself."""

    exit_code: ClassVar[int] = 2


class Unreachable(MeasurementError):
    """No connection, no such model, or the gateway cannot be measured."""


class Untrusted(MeasurementError):
    """An answer was not the requested work, or an engine was replaced: nothing measured with it may be used."""

    exit_code = 3


def first_cause(failure: BaseException) -> BaseException:
    """Returns the first exception of a group. The others come from tasks that were cancelled because of it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure

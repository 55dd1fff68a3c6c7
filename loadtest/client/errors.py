"""Why a measurement ends without a result, each with the exit code of its command. Imports nothing.

MeasurementError              never raised itself
  Unreachable            2    no connection, no such model, or the gateway cannot be measured
  Untrusted              3    an answer that was not the requested work: nothing measured with it may be used
    UnequalWork               another number of tokens than requested, or other prompt tokens than on the other backend
    Misrouted                 answered by another backend than the pinned one
    RequestFailed             an error instead of an answer
    EnginesChanged            a backend's engine is no longer the one that the run began with
"""

from typing import ClassVar


class MeasurementError(Exception):
    exit_code: ClassVar[int] = 2


class Unreachable(MeasurementError):
    pass


class Untrusted(MeasurementError):
    exit_code = 3


class UnequalWork(Untrusted):
    pass


class Misrouted(Untrusted):
    pass


class RequestFailed(Untrusted):
    pass


class EnginesChanged(Untrusted):
    pass


def first_cause(failure: BaseException) -> BaseException:
    """The first exception of a group. The others come from tasks that were cancelled because of it."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure

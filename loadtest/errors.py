"""Why a calibration ends without a threshold, each with the exit code it becomes. Imports nothing.

CalibrationError              never raised itself
  Unreachable            2    no connection, no such model, or the gateway refuses to be measured
  Untrusted              3    an answer that was not the work asked for: nothing measured with it may be used
    UnequalWork               another number of tokens than asked for, or other prompt tokens than the other backend's
    Misrouted                 answered by another backend than the pinned one
    RequestFailed             an error instead of an answer
    EnginesChanged            a backend's engine is no longer the one that the run began with
"""

from typing import ClassVar


class CalibrationError(Exception):
    exit_code: ClassVar[int] = 2


class Unreachable(CalibrationError):
    pass


class Untrusted(CalibrationError):
    exit_code = 3


class UnequalWork(Untrusted):
    pass


class Misrouted(Untrusted):
    pass


class RequestFailed(Untrusted):
    pass


class EnginesChanged(Untrusted):
    pass

"""Runs a command on a leash: when the command ends, or standard input closes, all its descendants end too.

In: a command line, and a pipe on standard input whose other end its starter holds. Out: the command's exit status.
Stands alone (`python -I -S leash.py COMMAND ...`): it has to do its work when its starter has been killed.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

GRACE_S = 5.0  # for the command, from SIGTERM to SIGKILL
LEFTOVERS_S = 1.0  # for its orphans, likewise; a multiprocessing resource tracker ends by itself meanwhile
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run sys.argv[1:]. PR_SET_PDEATHSIG would be shorter, but reaches no grandchild: killed that way, vLLM's API
    server leaves its engine processes running, and those ignore SIGTERM."""
    adopt_orphans()
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, process_group=0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: end(child.pid))
    threading.Thread(target=end_when_let_go, args=(child.pid,), daemon=True).start()
    status = wait_for(child.pid)
    end_leftovers(child.pid)
    return status if status >= 0 else 128 - status


def adopt_orphans() -> None:
    """Make descendants whose parent has died our children, not init's: none is missed, and none stays a zombie."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_when_let_go(pid: int) -> None:
    while os.read(0, 4096):
        pass
    end(pid)


def end(pid: int) -> None:
    """Signal the command alone, which knows best how to end its own children, and kill it soon. Returns at once."""
    send(os.kill, pid, signal.SIGTERM)
    timer = threading.Timer(GRACE_S, send, (os.kill, pid, signal.SIGKILL))
    timer.daemon = True
    timer.start()


def wait_for(pid: int) -> int:
    """Returns the command's exit code, negative for a signal; reaps all children that end before it."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def end_leftovers(group: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + LEFTOVERS_S
        send(os.killpg, group, number)
        while has_children() and time.monotonic() < deadline:
            if number == signal.SIGKILL:
                kill_children()
            time.sleep(0.02)


def has_children() -> bool:
    """Reaps the children that have ended. Returns whether one is left."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def kill_children() -> None:
    """Kills every child, also one that has left the process group."""
    with contextlib.suppress(OSError):
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            send(os.kill, int(pid), signal.SIGKILL)


def send(how: Callable[[int, int], None], target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        how(target, number)


if __name__ == "__main__":
    sys.exit(main())

"""The supervisor over tiny real processes: readiness, deaths, and that nothing outlives it in any way it can end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.ports import find_free, listens
from deploy.processes import Process
from deploy.supervisor import ChildDied, NotReady, Supervisor
from tests.processes import comes_true, is_running

ROOT = Path(__file__).parents[2]
PATIENCE_S = 20.0

# A server on port argv[1] with a child of its own in argv[2], which ignores SIGTERM; both pids go to standard output.
FAMILY = """
import os, signal, socket, subprocess, sys, time
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-S", "-c", DEAF])
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


def python(name: str, code: str, *arguments: str, is_ready: Callable[[], bool] = lambda: True) -> Process:
    return Process(name, (sys.executable, "-S", "-c", code, *arguments), is_ready)


def ignore(_name: str, _seconds: float) -> None:
    pass


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def port() -> int:
    return find_free(1)[0]


def start_family(supervisor: Supervisor, port: int) -> list[int]:
    child = supervisor.start(python("family", FAMILY, str(port), is_ready=lambda: listens(port)))
    supervisor.wait_until_ready(PATIENCE_S, ignore)
    assert comes_true(lambda: len(child.tail().split()) == 2)
    return [int(pid) for pid in child.tail().split()]


def test_each_child_is_reported_when_it_is_ready(logs: Path) -> None:
    slow = time.monotonic() + 0.5
    reported: list[str] = []
    with Supervisor(logs) as supervisor:
        supervisor.start(python("slow", "import time; time.sleep(60)", is_ready=lambda: time.monotonic() > slow))
        supervisor.start(python("quick", "import time; time.sleep(60)"))
        supervisor.wait_until_ready(PATIENCE_S, lambda name, _: reported.append(name))
    assert reported == ["quick", "slow"]


def test_child_that_dies_is_reported_with_its_last_words(logs: Path) -> None:
    code = "import sys; print('cannot load weights'); sys.exit(3)"
    with Supervisor(logs) as supervisor:
        supervisor.start(python("healthy", "import time; time.sleep(60)"))
        supervisor.start(python("engine", code, is_ready=lambda: False))
        with pytest.raises(ChildDied, match=r"(?s)engine ended unexpectedly \(exit status 3\).*cannot load weights"):
            supervisor.wait_until_ready(PATIENCE_S, ignore)


def test_child_killed_by_a_signal_is_reported_as_such(logs: Path, port: int) -> None:
    with Supervisor(logs) as supervisor:
        pids = start_family(supervisor, port)
        os.kill(pids[0], signal.SIGSEGV)
        with pytest.raises(ChildDied, match="killed by SIGSEGV"):
            supervisor.watch()
        assert comes_true(lambda: not is_running(pids[1])), "what a dead child started must not outlive it"


def test_child_that_never_gets_ready_is_named(logs: Path) -> None:
    with Supervisor(logs) as supervisor:
        supervisor.start(python("stuck", "import time; time.sleep(60)", is_ready=lambda: False))
        with pytest.raises(NotReady, match="stuck was not ready after 0 s"):
            supervisor.wait_until_ready(0.2, ignore)


def test_child_that_ignores_sigterm_is_killed(logs: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    with Supervisor(logs) as supervisor:
        child = supervisor.start(python("deaf", code))
        assert comes_true(lambda: child.tail() == "deaf")
    assert child.status == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_does_not_interrupt_the_ending(logs: Path, number: signal.Signals) -> None:
    code = """
import os, signal, sys, time
def end(*_):
    os.kill(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
    received: list[int] = []
    before = signal.signal(number, lambda got, _frame: received.append(got))
    try:
        with Supervisor(logs) as supervisor:
            child = supervisor.start(python("signaller", code, str(os.getpid()), str(int(number))))
            assert comes_true(lambda: child.tail() == "up")
        assert (child.status, received) == (0, [])
    finally:
        signal.signal(number, before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt its descendants' orphans")
def test_descendant_that_left_its_group_ends_too(logs: Path) -> None:
    code = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
    with Supervisor(logs) as supervisor:
        child = supervisor.start(python("daemon", code))
        assert comes_true(lambda: child.tail().isdigit())
        daemon = int(child.tail())
        assert is_running(daemon)
    assert not is_running(daemon)


def test_run_returns_the_status_and_ends_early_when_a_child_dies(logs: Path) -> None:
    with Supervisor(logs) as supervisor:
        assert supervisor.run(python("job", "import sys; sys.exit(7)")) == 7
        supervisor.start(python("short", "import time; time.sleep(0.5)"))
        with pytest.raises(ChildDied, match="short"):
            supervisor.run(python("job", "import time; time.sleep(600)"))


# A supervisor in a process of its own, so that the ways it can end are real.
PARENT = """
import signal, sys
from pathlib import Path
from deploy.demo import interrupt_on_signals
from deploy.ports import listens
from deploy.processes import Process
from deploy.supervisor import Supervisor

interrupt_on_signals()
with Supervisor(Path(sys.argv[1])) as supervisor:
    port = int(sys.argv[2])
    command = (sys.executable, "-S", "-c", sys.argv[3], str(port))
    child = supervisor.start(Process("family", command, lambda: listens(port)))
    supervisor.wait_until_ready(60, lambda *_: None)
    while len(child.tail().split()) < 2:
        pass
    print(child.tail(), flush=True)
    supervisor.watch()
"""


@pytest.fixture
def parent(logs: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, str(logs), str(port), FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_outlives_a_supervisor_ended_by_a_signal(parent: subprocess.Popen[str], number: signal.Signals) -> None:
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.send_signal(number)
    parent.wait(PATIENCE_S)
    assert comes_true(lambda: not any(is_running(pid) for pid in pids))

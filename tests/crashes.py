"""What a real server's own crash does to tests: it is started again, and so is the test that it befell, once.

A pytest plugin. tritonserver 2.51 ends now and then by a segmentation fault of its own while it closes a stream, and
every test after it would fail for want of it. Nothing of this project runs in that process but a model of Python's, in
a process of its own. Any other end, and any of the gateway, fails the test.
"""

import re
import warnings

import pytest
from _pytest.runner import runtestprotocol

from deploy.launch import Launched
from deploy.processes import Child
from deploy.supervisor import Supervisor

cpu_stack_key = pytest.StashKey[Launched]()
CRASH = re.compile(r"tritonserver ended by itself with exit code -(6|11)$", re.MULTILINE)  # SIGABRT, SIGSEGV


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """As pytest's own, twice if need be."""
    group = item.get_closest_marker("xdist_group")  # which tests.workers gives to all that share the stack
    if group is None or group.args[0] != "cpu":
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports) and is_mended(item):
        item._initrequest()  # type: ignore[attr-defined]  # its fixtures anew, as pytest-rerunfailures does
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def is_mended(item: pytest.Item) -> bool:
    """Whether tritonserver had crashed; if so, it is back."""
    running = item.config.stash.get(cpu_stack_key, None)
    ended = [] if running is None else [child for child in running.supervisor.children if child.status is not None]
    if running is None or not any(CRASH.search(child.tail()) for child in ended):
        return False
    for child in ended:
        start_again(running.supervisor, child)
    running.supervisor.wait_until_ready(running.stack.startup_s, lambda _name, _seconds: None)
    warn(item, f"{', '.join(child.process.name for child in ended)} had crashed and was started again")
    return True


def start_again(supervisor: Supervisor, child: Child) -> None:
    """The log of the one that ended stays, under another name."""
    child.let_go()
    supervisor.children.remove(child)
    assert child.log is not None
    child.log.rename(child.log.with_suffix(".crashed.log"))
    supervisor.start(child.process)


def warn(item: pytest.Item, message: str) -> None:
    """In the summary of the run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(message, pytest.PytestWarning, stacklevel=1)
    recorded = {"warning_message": caught[0], "nodeid": item.nodeid, "when": "runtest", "location": None}
    item.ihook.pytest_warning_recorded.call_historic(kwargs=recorded)

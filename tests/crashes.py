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
    if running is None or not any(CRASH.search(child.tail()) for child in running.supervisor.ended()):
        return False
    names = running.supervisor.start_again()
    running.supervisor.wait_until_ready(running.stack.startup_s, lambda _name, _seconds: None)
    tell(item, f"{', '.join(names)} had crashed and was started again")
    return True


def tell(item: pytest.Item, message: str) -> None:
    """In the summary of the run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(message, pytest.PytestWarning, stacklevel=1)
    told = {"warning_message": caught[0], "nodeid": item.nodeid, "when": "runtest", "location": None}
    item.ihook.pytest_warning_recorded.call_historic(kwargs=told)

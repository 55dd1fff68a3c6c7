"""Processes as tests see them, and waiting for what they do."""

import time
from collections.abc import Callable
from pathlib import Path


def is_running(pid: int) -> bool:
    """False for a zombie too: whether somebody reaps an orphan is another question."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def find_children(parent: int) -> dict[int, str]:
    """Every descendant of a process, with its command line."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            found |= {pid: read_command(pid)} | find_children(pid)
    return found


def find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def comes_true(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether it does in that time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True

"""Processes of this package that another one starts: each is a fresh interpreter that reads its orders on stdin.

In: a module, orders, descriptors. Out: a process. Imports nothing of the package: the first process lives by it.
"""

import asyncio
import os
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress

MOST_BYTES = 128 * 1024  # of a message between a generation and the process that keeps it


async def start(module: str, orders: bytes, fds: Collection[int]) -> asyncio.subprocess.Process:
    """Starts it with the descriptors `fds` under the numbers that they have here. Raises OSError.

    In its own process group: Ctrl-C reaches it through us alone, or the second signal would cut its answers off.
    """
    process = await asyncio.create_subprocess_exec(
        # -P and our own path: it imports what this process would, not what lies in the current directory.
        *(sys.executable, "-P", "-m", module),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=fds,
        process_group=0,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},  # noqa: TID251 - a launcher hands it on
    )
    assert process.stdin is not None  # it was asked for
    process.stdin.write(orders)
    process.stdin.close()
    return process


def send_signal(processes: Iterable[asyncio.subprocess.Process], number: int) -> None:
    """Signals those that have not ended."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(number)

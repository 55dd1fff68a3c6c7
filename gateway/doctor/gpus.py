"""The GPUs of this machine, and the processes on each, as nvidia-smi lists them.

In: nothing. Out: Gpus; none where there is no nvidia-smi or it fails. Process ids are this machine's: in a container
nvidia-smi may list none.
"""

import asyncio
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TIMEOUT_S = 20.0  # without persistence mode the driver first wakes every GPU

GPU_FIELDS = ("index", "uuid", "name", "driver_version", "memory.total")
APP_FIELDS = ("gpu_uuid", "pid")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: str
    name: str
    driver: str
    total_mib: int
    pids: frozenset[int]


async def read_gpus() -> tuple[Gpu, ...]:
    rows = await _query("--query-gpu", GPU_FIELDS)
    apps = await _query("--query-compute-apps", APP_FIELDS) if rows else []
    return tuple(_read(row, apps) for row in rows if row[4].isdigit())


def _read(row: Sequence[str], apps: Sequence[Sequence[str]]) -> Gpu:
    index, uuid, name, driver, total = row
    pids = frozenset(int(pid) for gpu_uuid, pid in apps if gpu_uuid == uuid and pid.isdigit())
    return Gpu(index, name, driver, int(total), pids)


async def _query(kind: str, fields: Sequence[str]) -> list[list[str]]:
    command = ("nvidia-smi", f"{kind}={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return []
    return list(_rows(output.decode(errors="replace"), len(fields))) if process.returncode == 0 else []


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """Yields the rows with all columns: there may be a line of prose beside them."""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == width:
            yield [field.strip() for field in row]

"""The GPUs of this machine, and the processes on each, as nvidia-smi lists them.

In: nothing. Out: Gpus; none where there is no nvidia-smi or it fails. Process ids are this machine's: in a container
nvidia-smi may list none.
"""

import asyncio
import csv
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TIMEOUT_S = 20.0  # without persistence mode the driver first wakes every GPU

GPU_FIELDS = ("index", "uuid", "name", "driver_version")
APP_FIELDS = ("gpu_uuid", "pid")


@dataclass(frozen=True, slots=True)
class Gpu:
    index: str
    name: str
    driver: str
    pids: frozenset[int]


async def read_gpus() -> tuple[Gpu, ...]:
    rows = await asyncio.to_thread(_query, "--query-gpu", GPU_FIELDS)
    apps = await asyncio.to_thread(_query, "--query-compute-apps", APP_FIELDS) if rows else []
    return tuple(_read(row, apps) for row in rows if row[0].isdigit())


def _read(row: Sequence[str], apps: Sequence[Sequence[str]]) -> Gpu:
    index, uuid, name, driver = row
    pids = frozenset(int(pid) for gpu_uuid, pid in apps if gpu_uuid == uuid and pid.isdigit())
    return Gpu(index, name, driver, pids)


def _query(kind: str, fields: Sequence[str]) -> list[list[str]]:
    command = ("nvidia-smi", f"{kind}={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return list(_rows(done.stdout.decode(errors="replace"), len(fields)))


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """Yields the rows with all columns: there may be a line of prose beside them."""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == width:
            yield [field.strip() for field in row]

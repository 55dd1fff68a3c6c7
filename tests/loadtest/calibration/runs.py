"""Calibrations against a gateway on a socket: in this process, or as users run the command."""

import asyncio
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from loadtest.admin import find_system
from loadtest.calibration.campaign import Campaign
from loadtest.calibration.cell_meter import Site
from loadtest.calibration.progress_display import PlainProgress
from loadtest.client.target import Target
from loadtest.results.folder import RunFolder
from loadtest.results.plan import Plan
from loadtest.results.result import Result
from tests.loadtest.fake_gateway import FakeGateway, Speed

LOW, HIGH = Speed(base_s=0.012, per_request_s=0.002), Speed(base_s=0.0216, per_request_s=0.0004)  # cross at 6
SHORT = (
    "--quick",
    "--rehearsals",
    "0",
    "--turns",
    "0",
    "--policy",
    "threshold",
    "--tokens",
    "8",
    "--window",
    "0.4",
    "--levels",
    "2,4,8,16",
)


async def run_campaign(
    gateway: FakeGateway, plan: Plan, out: Path, *, max_foreign: int | None = None, exporter: Target | None = None
) -> tuple[Result, list[dict[str, Any]], str]:  # Any: JSON
    """The result, the lines of cells.jsonl, and what was shown."""
    target, shown = Target.parse(gateway.url), io.StringIO()
    folder = RunFolder.create(out)
    system = await find_system(target, None)
    progress = PlainProgress(Console(file=shown))
    site = Site(target, max_foreign, exporter)
    result = await Campaign(site, system, plan, folder, progress, datetime.now(UTC), plan.seed).run()
    lines = (folder.path / "cells.jsonl").read_bytes().splitlines()
    return result, [orjson.loads(line) for line in lines], shown.getvalue()


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


async def start(
    gateway: FakeGateway | None, out: Path, *options: str, by: Sequence[str] = ()
) -> asyncio.subprocess.Process:
    url = gateway.url if gateway else "http://127.0.0.1:9"
    command = (*by, sys.executable, "-m", "loadtest", "--url", url, "--out", str(out), *options)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


async def read_until(process: asyncio.subprocess.Process, *patterns: bytes) -> None:
    """Reads its output until a line has matched each pattern, one after the other."""
    assert process.stdout is not None
    for pattern in patterns:
        while not re.match(pattern, await process.stdout.readline()):
            pass


async def calibrate(gateway: FakeGateway | None, out: Path, *options: str) -> Outcome:
    process = await start(gateway, out, *options)
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return Outcome(process.returncode, stdout.decode(), stderr.decode())


def read_result(out: Path) -> Any:  # Any: JSON, read key by key
    (path,) = out.glob("*/result.json")
    return json.loads(path.read_bytes())


async def wait_for_lines(out: Path, lines: int) -> Path:
    """cells.jsonl, when it has so many."""

    def count() -> int:
        return sum(len(path.read_bytes().splitlines()) for path in out.glob("*/cells.jsonl"))

    async with asyncio.timeout(30):
        while await asyncio.to_thread(count) < lines:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    (file,) = await asyncio.to_thread(lambda: list(out.glob("*/cells.jsonl")))
    return file

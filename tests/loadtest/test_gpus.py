"""What a DCGM exporter tells of GPUs: read from its page, put beside cells, and judged."""

import asyncio
import csv
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.cell import Gpu
from loadtest.checks import review
from loadtest.errors import Unreachable
from loadtest.gpus import GpuWatch, read_page, summarise
from loadtest.judge import Judge
from loadtest.report.gpus import find_power_w, list_gpus
from loadtest.target import Target
from tests.loadtest.fake_gateway import FakeGateway
from tests.loadtest.samples import make_cells
from tests.loadtest.test_calibrate import HIGH, LOW, SHORT, calibrate, read_result

UNKNOWN = 9223372036854775794  # DCGM's own
PAGE = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{gpu="0", UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n"}} {clock}
DCGM_FI_DEV_SM_CLOCK{{gpu="1", UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="n"}} 345
# HELP DCGM_FI_DEV_MEMORY_TEMP Memory temperature (in C).
# TYPE DCGM_FI_DEV_MEMORY_TEMP gauge
DCGM_FI_DEV_MEMORY_TEMP{{gpu="0", UUID="GPU-1"}} 70
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{gpu="0", UUID="GPU-1"}} 612.5
DCGM_FI_DEV_POWER_USAGE{{gpu="1", UUID="GPU-2"}} 71.25
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{gpu="0", UUID="GPU-1"}} 71680
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{gpu="0", UUID="GPU-1"}} {unknown}
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0", UUID="GPU-1"}} 98
DCGM_FI_DEV_GPU_UTIL{{gpu="1", UUID="GPU-2"}} 0
"""


def page(clock: int = 1980) -> str:
    return PAGE.format(clock=clock, unknown=UNKNOWN)


@asynccontextmanager
async def exporter(tell: Callable[[], str], status: str = "200 OK") -> AsyncIterator[str]:
    """Its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /metrics HTTP/1.1\r\n")
        body = tell().encode()
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics"


def test_a_page_is_read_by_gpu_and_what_is_unknown_is_left_out() -> None:
    reading = read_page(page(), at=1.0)
    assert reading.gpus["0"] == {
        "sm_clock_mhz": 1980, "power_w": 612.5, "memory_used_mib": 71680, "busy_percent": 98,
    }  # fmt: skip
    assert reading.gpus["1"] == {"sm_clock_mhz": 345, "power_w": 71.25, "busy_percent": 0}
    assert reading.names["0"] == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("text", ["", "# TYPE up gauge\nup 1\n", "<html>not found</html>"])
def test_another_page_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"DCGM_FI_DEV_POWER_USAGE|could not|too few|invalid|Invalid"):
        read_page(text, at=0.0)


def test_readings_become_means_and_extremes() -> None:
    first, other = summarise(read_page(page(clock), at=clock) for clock in (1980, 1500))
    assert first == Gpu(
        gpu="0",
        name="NVIDIA H100 80GB HBM3",
        readings=2,
        power_w=612.5,
        sm_clock_mhz=1740,
        least_sm_clock_mhz=1500,
        memory_used_mib=71680,
        temperature_c=None,
        busy=0.98,
    )
    assert (other.gpu, other.busy, other.memory_used_mib) == ("1", 0, None)
    assert summarise([]) == ()


async def test_an_exporter_that_fails_for_a_moment_ends_nothing() -> None:
    told = iter(["", page()])

    async def measure() -> str:
        await asyncio.sleep(1.5)
        return "measured"

    async with exporter(lambda: next(told, page())) as url:
        assert await GpuWatch(Target.parse(url)).over(measure()) == "measured"


async def test_an_exporter_that_is_none_is_told_at_once() -> None:
    async with exporter(page, "404 Not Found") as url:
        with pytest.raises(Unreachable, match="HTTP 404"):
            await GpuWatch(Target.parse(url)).look()
    async with exporter(lambda: "up 1\n") as url:
        with pytest.raises(Unreachable, match="is not the page of a DCGM exporter"):
            await GpuWatch(Target.parse(url)).look()


async def test_a_failure_of_what_is_measured_comes_through() -> None:
    async def fail() -> None:
        raise Unreachable("gone")

    async with exporter(page) as url:
        with pytest.raises(Unreachable, match="gone"):
            await GpuWatch(Target.parse(url)).over(fail())


def gpu_check(clocks: dict[int, float], busy: float | None = 0.98) -> tuple[str, str]:
    """Of a run in which GPU 0 had this clock at a level, and 1,980 MHz elsewhere."""
    usual = summarise([read_page(page(), at=0.0)])[0]
    cells = [
        replace(cell, gpus=(replace(usual, sm_clock_mhz=clocks.get(cell.level, 1980.0), busy=busy),))
        for cell in make_cells({1: 1.2, 8: 1.1, 32: 0.9, 64: 0.8})
    ]
    (check,) = (check for check in review(cells, Judge(answers=9), "triton") if check.name == "gpu clocks")
    return check.status, check.message


def test_a_busy_gpu_that_slows_down_is_told() -> None:
    assert gpu_check({}) == ("passed", "every busy GPU kept its usual clock")
    assert gpu_check({64: 1890.0})[0] == "passed"
    status, message = gpu_check({64: 1500.0})
    assert status == "failed"  # a quarter of all cells
    assert message.startswith("GPU SLOWED at c=64: GPU 0 ran at 1500 MHz under ")
    assert gpu_check({64: 345.0}, busy=0.1)[0] == "passed"  # it had nothing to do
    assert gpu_check({64: 345.0}, busy=None)[0] == "failed"  # who knows


def test_without_an_exporter_nothing_is_claimed() -> None:
    assert not [
        check for check in review(make_cells({1: 1.2, 8: 0.9}), Judge(answers=9), "triton") if "gpu" in check.name
    ]


def test_the_report_lists_gpus_by_backend_and_level() -> None:
    gpus = summarise([read_page(page(), at=0.0)])
    cells = [replace(cell, gpus=gpus) for cell in make_cells({1: 1.2, 8: 0.9})]
    rows = list_gpus(cells)
    assert len(rows) == 2 * 2 * 2
    assert rows[0] == (
        "triton", "1", "0 NVIDIA H100 80GB HBM3", "612", "1,980", "1,980", "70.0", "n/a", "98%",
    )  # fmt: skip
    assert find_power_w(cells[0]) == pytest.approx(683.75, abs=0.06)


@pytest.mark.timeout(180)
async def test_a_calibration_puts_them_beside_its_cells(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway, exporter(page) as url:
        options = (*SHORT, "--window", "1.5", "--budget", "0", "--accept-wide", "--gpus", url)
        outcome = await calibrate(gateway, tmp_path, *options)
    assert outcome.exit_code == 0, outcome
    result = read_result(tmp_path)
    told = [cell for cell in result["cells"] if cell["gpus"]]
    assert told
    assert told[0]["gpus"][0]["power_w"] == pytest.approx(612.5)
    folder = tmp_path / result["run"]
    assert "612" in (folder / "report.html").read_text()
    rows = list(csv.DictReader((folder / "cells.csv").read_text().splitlines()))
    assert any(row["gpu_power_w"] for row in rows)
    assert json.loads((folder / "cells.jsonl").read_text().splitlines()[0])["gpus"] is not None


async def test_a_page_that_is_no_exporters_ends_a_calibration_before_it_begins(tmp_path: Path) -> None:
    async with FakeGateway(LOW, HIGH) as gateway, exporter(lambda: "up 1\n") as url:
        outcome = await calibrate(gateway, tmp_path, *SHORT, "--gpus", url)
    assert outcome.exit_code == 2
    assert "is not the page of a DCGM exporter" in outcome.stdout + outcome.stderr

"""What a DCGM exporter reports of GPUs: read from its page, added to cells, and checked."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.calibration.cell_meter import observe
from loadtest.calibration.dcgm import GpuWatch, read_page, summarise
from loadtest.client.errors import Unreachable
from loadtest.client.target import Target
from loadtest.report.gpu_table import list_gpus, sum_power_w
from loadtest.results.cell import Gpu
from loadtest.results.checks import review
from loadtest.results.plan import QUICK
from tests.fakes.openai import FakeOpenAI, sized
from tests.loadtest.calibration.runs import HIGH, LOW, run_campaign
from tests.loadtest.fake_gateway import FakeGateway
from tests.loadtest.samples import make_cells

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


class Exporter(FakeOpenAI):
    """Answers every request with the next of `pages`; the last one is repeated."""

    def __init__(self, *pages: str, status: int = 200) -> None:
        super().__init__()
        self._pages, self._status = list(pages), status

    async def _answer_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /metrics HTTP/1.1\r\n")
        page = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        writer.write(sized(page.encode(), self._status))

    @property
    def target(self) -> Target:
        return Target.parse(f"{self.url}/metrics")


def test_a_page_is_read_by_gpu_and_what_is_unknown_is_left_out() -> None:
    reading = read_page(page(), at=1.0)
    known = {"sm_clock_mhz": 1980, "power_w": 612.5, "memory_used_mib": 71680, "busy_percent": 98}
    assert reading.gpus["0"] == known
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
    exporter = Exporter("", page())
    async with exporter.serving():
        assert await observe(asyncio.sleep(1.5, "measured"), [GpuWatch(exporter.target).sample()]) == "measured"


async def test_a_page_that_is_no_exporters_ends_a_calibration_before_it_begins(tmp_path: Path) -> None:
    exporter = Exporter(page(), status=404)
    async with exporter.serving():
        with pytest.raises(Unreachable, match="HTTP 404"):
            await GpuWatch(exporter.target).read()
    exporter = Exporter("up 1\n")
    async with FakeGateway(LOW, HIGH) as gateway, exporter.serving():
        with pytest.raises(Unreachable, match="is not the page of a DCGM exporter"):
            await run_campaign(gateway, QUICK, tmp_path, exporter=exporter.target)


USUAL = summarise([read_page(page(), at=0.0)])


@pytest.mark.parametrize(
    ("clock", "busy", "status", "message"),
    [
        (1980.0, 0.98, "passed", "every busy GPU kept its usual clock"),
        (1890.0, 0.98, "passed", "every busy GPU"),
        (1500.0, 0.98, "failed", "GPU SLOWED at c=64: GPU 0 ran at 1500 MHz under "),  # a quarter of all cells
        (345.0, 0.1, "passed", "every busy GPU"),  # it had nothing to do
        (345.0, None, "failed", "GPU SLOWED at c=64"),  # who knows
    ],
)
def test_a_busy_gpu_that_slows_down_is_refused(clock: float, busy: float | None, status: str, message: str) -> None:
    cells = [
        replace(cell, gpus=(replace(USUAL[0], sm_clock_mhz=clock if cell.level == 64 else 1980.0, busy=busy),))
        for cell in make_cells({1: 1.2, 8: 1.1, 32: 0.9, 64: 0.8})
    ]
    (check,) = (check for check in review(cells, 9, "triton") if check.name == "gpu clocks")
    assert (check.status, check.message.startswith(message)) == (status, True)


def test_without_an_exporter_nothing_is_claimed() -> None:
    assert not [check for check in review(make_cells({1: 1.2, 8: 0.9}), 9, "triton") if "gpu" in check.name]


def test_the_report_lists_gpus_by_backend_and_level() -> None:
    cells = [replace(cell, gpus=USUAL) for cell in make_cells({1: 1.2, 8: 0.9})]
    rows = list_gpus(cells)
    assert len(rows) == 2 * 2 * 2
    assert " ".join(rows[0]) == "triton 1 0 NVIDIA H100 80GB HBM3 612 1,980 1,980 70.0 n/a 98%"
    assert sum_power_w(cells[0]) == pytest.approx(683.75, abs=0.06)


async def test_a_calibration_adds_them_to_its_cells(tmp_path: Path) -> None:
    plan = replace(QUICK, levels=(2,), tokens=8, window_s=1.2, refine_pairs=0, retries=0)
    exporter = Exporter(page())
    async with FakeGateway(LOW, HIGH) as gateway, exporter.serving():
        result, lines, _ = await run_campaign(gateway, plan, tmp_path, exporter=exporter.target)
    assert any(gpu.power_w == pytest.approx(612.5) for cell in result.cells for gpu in cell.gpus)
    assert any(line["gpus"] for line in lines)

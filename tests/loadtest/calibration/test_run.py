"""What ends a run before it begins: nothing is written then."""

from dataclasses import replace
from pathlib import Path

import pytest

from engines.physics import EngineModel
from loadtest.calibration.cell_meter import Site
from loadtest.calibration.progress import Progress
from loadtest.calibration.run import PolicyKind, RunOptions, choose_keys, run
from loadtest.client.errors import MeasurementError
from loadtest.client.target import Target
from loadtest.decide.cost import Cost
from loadtest.results.hardware import Hardware
from loadtest.results.node import NodeModel
from loadtest.results.plan import QUICK, Plan
from tests.loadtest.calibration.runs import HIGH, LOW
from tests.loadtest.fake_gateway import FakeGateway
from tests.loadtest.samples import CROSSING, make_result

OTHER_VERSION = {"vllm": Hardware(engine={"version": "0.23.0", "precision": "fp8"})}
ENGINE = EngineModel(((1, 10.0),))


def make_options(gateway: FakeGateway, plan: Plan, out: Path) -> RunOptions:
    return RunOptions(site=Site(Target.parse(gateway.url)), model=None, plan=plan, out=out)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            replace(QUICK, hardware=OTHER_VERSION),
            "--hardware: vllm's version was declared as 0.23.0, and the engine says 0.24.0",
        ),
        (
            replace(QUICK, cost=Cost(gpus={"triton": 2, "sglang": 2})),
            "--gpu-count: sglang was given, and the backends are triton and vllm",
        ),
    ],
)
async def test_a_declaration_that_cannot_be(tmp_path: Path, plan: Plan, message: str) -> None:
    async with FakeGateway(LOW, HIGH) as gateway:
        options = make_options(gateway, plan, tmp_path / "runs")
        with pytest.raises(MeasurementError, match=message):
            await run(options, Progress())
    assert not (tmp_path / "runs").exists()


async def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with FakeGateway(LOW, HIGH) as gateway:
        options = RunOptions(
            site=Site(Target.parse(gateway.url)), model=None, plan=QUICK, out=tmp_path / "file" / "runs"
        )
        with pytest.raises(MeasurementError, match="cannot write to"):
            await run(options, Progress())


@pytest.mark.parametrize(
    ("kind", "error", "crossing", "keys"),
    [
        ("curve", 0.3, CROSSING, {"node"}),
        ("curve", 0.4, CROSSING, {"up", "down"}),
        ("curve", 0.4, {}, None),
        ("threshold", 0.0, CROSSING, {"up", "down"}),
        ("threshold", 0.0, {}, None),
    ],
)
def test_a_node_model_that_misses_its_own_cells_is_not_applied(
    kind: PolicyKind, error: float, crossing: dict[int, float], keys: set[str] | None
) -> None:
    node = NodeModel(ENGINE, ENGINE, 1.0, 0.02, 80, 128, high_error=error)
    chosen = choose_keys(replace(make_result(crossing), node=node), kind)
    assert (None if chosen is None else set(chosen)) == keys


def test_without_a_node_model_no_other_policy_is_set() -> None:
    assert choose_keys(make_result(CROSSING), "curve") is None

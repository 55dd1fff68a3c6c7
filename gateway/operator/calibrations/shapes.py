"""The JSON of the calibration routes: the order for a calibration, and the state of one."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.operator.calibrations.job import END, Event, Job

Level = Annotated[int, Field(ge=1, le=4096)]


class CalibrationBody(BaseModel):
    """What to measure, and how much of the gateway it may take; the defaults are those of `crossover calibrate`.

    `max_in_flight`: no level above this is measured. `max_foreign`: no measurement begins while more requests of
    others are in flight.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    quick: bool = False
    apply: bool = False
    policy: Literal["curve", "threshold"] | None = None
    tokens: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    levels: Annotated[list[Level], Field(min_length=1, max_length=64)] | None = None
    budget_s: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    max_in_flight: Level = 128
    max_foreign: Annotated[int, Field(ge=0, le=4096)] = 0

    @model_validator(mode="after")
    def _check_levels(self) -> Self:
        if self.levels is not None and len(set(self.levels)) < len(self.levels):
            raise PydanticCustomError("crossover", "levels are distinct")
        if self.levels is not None and min(self.levels) > self.max_in_flight:
            raise PydanticCustomError("crossover", "all levels are above max_in_flight")
        return self

    def arguments(self, url: str) -> list[str]:
        values: dict[str, object] = {"--model": self.model, "--policy": self.policy, "--tokens": self.tokens}
        values |= {"--levels": ",".join(map(str, self.levels)) if self.levels else None, "--budget": self.budget_s}
        values |= {"--max-in-flight": self.max_in_flight, "--max-foreign": self.max_foreign}
        flags = [f"--{name}" for name in ("quick", "apply") if getattr(self, name)]
        # One word each: a model's name may begin with a dash.
        return ["--url", url, *flags, *(f"{name}={value}" for name, value in values.items() if value is not None)]


class ProgressView(BaseModel):
    """`pairs`: the sweep's; `pairs_done` counts the refinement's too. `left_s`: of the sweep, null when it is over."""

    pairs_done: int = 0
    pairs: int
    left_s: int | None


class ThresholdView(BaseModel):
    up: int
    down: int


class CalibrationView(BaseModel):
    """`state`: running, or how it ended. `run_folder`: for `crossover calibrate --resume` on the gateway's machine."""

    id: str
    state: str
    started_at: datetime
    by: str
    options: CalibrationBody
    url: str
    events_url: str
    run_folder: str | None
    progress: ProgressView | None
    verdict: str | None
    finding: str | None
    threshold: ThresholdView | None
    applied: dict[str, Any] | None  # Any: the policy in force then, as GET /admin/policy has it
    failure: str | None

    @classmethod
    def of(cls, job: Job) -> Self:
        order, events = job.read_order(), job.read_events()
        end: Event = events[-1] if events and events[-1]["event"] == END else {}
        begin = next((event for event in events if event["event"] == "begin"), {})
        outcome = {name: end.get(name) for name in ("verdict", "finding", "threshold", "applied", "failure")}
        url = f"/admin/calibrations/{job.id}"
        return cls.model_validate({
            "id": job.id,
            "state": end.get("status", "running"),
            "url": url,
            "events_url": f"{url}/events",
            **{name: order[name] for name in ("started_at", "by", "options")},
            **outcome,
            "run_folder": begin.get("folder"),
            # The last event that counts pairs.
            "progress": next((event for event in reversed(events) if "pairs" in event), None),
        })


class CalibrationList(BaseModel):
    """All calibrations, the latest first."""

    calibrations: list[CalibrationView]

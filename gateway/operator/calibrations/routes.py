"""/admin/calibrations: start one beside live traffic, follow it, cancel it. In: JSON. Out: JSON, server-sent events."""

import asyncio
import logging
from collections.abc import AsyncIterator

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from gateway.address import make_url
from gateway.operator.calibrations.job import END, Job
from gateway.operator.calibrations.registry import Calibrations
from gateway.operator.calibrations.shapes import CalibrationBody, CalibrationList, CalibrationView
from gateway.operator.entrance import find_key, name_caller
from gateway.routing import Router

POLL_S = 0.25
POLLS_PER_COMMENT = 60  # proxies close a connection that is silent for a minute or so

audit = logging.getLogger("gateway.audit")


def calibration_routes(router: Router, calibrations: Calibrations) -> APIRouter:
    routes = APIRouter(prefix="/admin/calibrations", tags=["admin"])

    @routes.post("", status_code=201)
    async def start(body: CalibrationBody, request: Request) -> CalibrationView:
        """Start a calibration of this gateway by itself; 409 while there is one."""
        router.model_state(body.model)  # refused at once if there is no such model, or a choice between several
        by = name_caller(request)
        url = make_url(*request.scope["server"])  # at which this came in: we listen there, whatever the client's name
        job = calibrations.start(body, url, by, find_key(request))
        audit.info("calibration %s started by %s: %s", job.id, by, body)
        return CalibrationView.of(job)

    @routes.get("")
    async def list_all() -> CalibrationList:
        """Every calibration that was started over HTTP, the latest first."""
        return CalibrationList(calibrations=[CalibrationView.of(job) for job in calibrations.list()])

    @routes.get("/{job_id}")
    async def read(job_id: str) -> CalibrationView:
        """The calibration's progress, or how it ended."""
        return CalibrationView.of(calibrations.find(job_id))

    @routes.get("/{job_id}/events")
    async def follow(job_id: str) -> StreamingResponse:
        """The calibration's events from the first one on, as server-sent events of the same names, until it ends."""
        job = calibrations.find(job_id)
        return StreamingResponse(_stream(job), media_type="text/event-stream", headers={"cache-control": "no-store"})

    @routes.delete("/{job_id}", status_code=202)
    async def cancel(job_id: str) -> CalibrationView:
        """Stop it; its policy is not applied, and it can be resumed. One that has ended stays as it is."""
        job = calibrations.find(job_id)
        calibrations.cancel(job)
        return CalibrationView.of(job)

    return routes


async def _stream(job: Job) -> AsyncIterator[bytes]:
    sent = silent = 0
    while True:
        events = job.read_events()
        for event in events[sent:]:
            yield b"event: %s\ndata: %s\n\n" % (str(event["event"]).encode(), orjson.dumps(event))
        if events and events[-1]["event"] == END:
            return
        silent = 0 if len(events) > sent else silent + 1
        sent = len(events)
        if silent and silent % POLLS_PER_COMMENT == 0:
            yield b": still running\n\n"
        await asyncio.sleep(POLL_S)

"""An engine dies under load, and comes back."""

import asyncio
import os
import signal

import pytest

from deploy.processes import Process
from tests.system.site import Site, Told, becomes, pid_of


def find_process(site: Site, name: str) -> Process:
    return next(process for process in site.stack.stack.engines if process.name == name)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("victim", "survivor"), [("triton", "vllm"), ("vllm", "triton")])
async def test_an_engine_killed_under_fifty_requests(own: Site, victim: str, survivor: str) -> None:
    """Requests not begun are answered by the other, cut streams end with an error event, and it is used again later."""
    await own.set_policy(low=victim, high=survivor, up=1000, down=999, dwell_s=0.0)
    begun = [Told() for _ in range(25)]
    async with asyncio.TaskGroup() as group:
        early = [group.create_task(own.ask(64, told)) for told in begun]
        for told in begun:
            await told.began.wait()
        os.kill(pid_of(own.stack, victim), signal.SIGSTOP)  # so that none of the late ones begins before its end
        late = [group.create_task(own.ask(32)) for _ in range(25)]
        await becomes(own.in_flight, 50, within_s=1)
        os.kill(pid_of(own.stack, victim), signal.SIGKILL)
    for told in (task.result() for task in early):
        assert told.backend == victim
        assert told.status == 200
        assert told.error is not None, "a cut stream ends with an error event"
        assert told.error["code"] == "backend_lost"
        assert not told.is_done
    answers = [task.result() for task in late]
    assert all(told.is_whole and told.completion_tokens == 32 for told in answers), answers
    assert {told.backend for told in answers} == {survivor}

    after = await asyncio.gather(*(own.ask(2) for _ in range(30)))
    assert all(told.is_whole and told.backend == survivor for told in after)

    own.stack.supervisor.start(find_process(own, victim))

    async def backend_of_a_request() -> str | None:
        told = await own.ask(1)
        assert told.is_whole
        return told.backend

    await becomes(backend_of_a_request, victim, within_s=30)

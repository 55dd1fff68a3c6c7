"""An engine dies under load, and comes back."""

import asyncio
import os
import signal

import pytest

from deploy.processes import Process
from tests.system.site import Site, StreamedAnswer, becomes, pid_of


def find_process(site: Site, name: str) -> Process:
    return next(process for process in site.stack.stack.engines if process.name == name)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("victim", "survivor"), [("triton", "vllm"), ("vllm", "triton")])
async def test_an_engine_killed_under_fifty_requests(own: Site, victim: str, survivor: str) -> None:
    """Requests not begun are answered by the other, cut streams end with an error event, and it is used again later."""
    await own.set_policy(low=victim, high=survivor, up=1000, down=999, dwell_s=0.0)
    begun = [StreamedAnswer() for _ in range(25)]
    async with asyncio.TaskGroup() as group:
        early = [group.create_task(own.ask(64, answer)) for answer in begun]
        for answer in begun:
            await answer.began.wait()
        os.kill(pid_of(own.stack, victim), signal.SIGSTOP)  # so that none of the late ones begins before its end
        late = [group.create_task(own.ask(32)) for _ in range(25)]
        await becomes(own.in_flight, 50, within_s=1)
        os.kill(pid_of(own.stack, victim), signal.SIGKILL)
    for answer in (task.result() for task in early):
        assert answer.backend == victim
        assert answer.status == 200
        assert answer.error is not None, "a cut stream ends with an error event"
        assert answer.error["code"] == "backend_lost"
        assert not answer.is_done
    answers = [task.result() for task in late]
    assert all(answer.is_whole and answer.completion_tokens == 32 for answer in answers), answers
    assert {answer.backend for answer in answers} == {survivor}

    after = await asyncio.gather(*(own.ask(2) for _ in range(30)))
    assert all(answer.is_whole and answer.backend == survivor for answer in after)

    own.stack.supervisor.start(find_process(own, victim))

    async def backend_of_a_request() -> str | None:
        answer = await own.ask(1)
        assert answer.is_whole
        return answer.backend

    await becomes(backend_of_a_request, victim, within_s=30)

"""Answer times of a paced engine on a real socket against those of the simulation of the same engine."""

import asyncio
import random
import statistics

import aiohttp
import pytest

from engines.physics import Job
from engines.reference.pairs import Role, load_pairs
from engines.simulation import NodeSpec, simulate
from tests.engines.test_pacing import Alone
from tests.engines.wires.servers import serving


def draw_trace(requests: int, rate: float, seed: int) -> list[Job]:
    """Poisson arrivals, prompts of 20 to 560 tokens, answers of 20 to 300."""
    chance, at, jobs = random.Random(seed), 0.0, list[Job]()
    for _ in range(requests):
        at += chance.expovariate(rate)
        jobs.append(Job(at, chance.randrange(20, 560), chance.randrange(20, 300)))
    return jobs


async def serve(url: str, trace: list[Job], time_scale: float) -> list[float]:
    """Returns each answer's seconds from when its request was due."""
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        begun = loop.time() + 1.0

        async def ask(index: int, job: Job) -> float:
            due = begun + job.at * time_scale
            prompt = [(index * 7919 + 31 * place * place) % 1000 for place in range(job.prompt_tokens)]
            await asyncio.sleep(due - loop.time())
            body = {"token_ids": prompt, "sampling_params": {"max_tokens": job.tokens}, "stream": True}
            async with http.post(f"{url}/inference/v1/generate", json=body) as answer:
                assert answer.status == 200
                await answer.read()
            return loop.time() - due

        return await asyncio.gather(*(ask(index, job) for index, job in enumerate(trace)))


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("pair", "role"), [("tp-dp", "high"), ("spec-plain", "low")])
@pytest.mark.parametrize(("time_scale", "requests"), [(2.0, 400), (10.0, 80)])
async def test_an_open_loop_takes_as_long_as_in_the_simulation(
    pair: str, role: Role, time_scale: float, requests: int
) -> None:
    trace, engine = draw_trace(requests, 25.0, seed=requests), load_pairs()[pair].engines[role]
    simulated = simulate(
        [Job(job.at, job.prompt_tokens, job.tokens) for job in trace], NodeSpec({"it": engine}), Alone()
    )
    expected = [((job.end_s or 0.0) - job.at) * time_scale for job in simulated]
    with serving(
        "engines.reference.vllm_http", "--port", "0", "--pace", f"{pair}:{role}", "--time-scale", f"{time_scale:g}"
    ) as server:
        measured = await serve(server.addresses[0], trace, time_scale)
    ratio = statistics.fmean(measured) / statistics.fmean(expected)
    print(f"{pair}:{role} x {time_scale:g}: {statistics.fmean(measured):.3f} s, {ratio:.4f} of the simulation's")  # noqa: T201 - -rP
    assert ratio == pytest.approx(1, abs=0.05)

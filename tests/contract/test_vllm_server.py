"""The newest vLLM's own server: prompt ids that it renders beside the gateway's, and answers to the adapter's bodies.

It is the newest release's Python over the CPU build's kernels (`make stacks`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import aiohttp
import pytest
import yaml

from deploy.cpu import STACKS, STARTUP_S, vllm
from deploy.ports import LOCALHOST, find_free
from deploy.processes import Process
from deploy.stacks import MODEL, WEIGHTS, gateway
from deploy.supervisor import Supervisor
from gateway.backends.vllm_json import EventReader, encode
from gateway.backends.vllm_scores import ScoredEventReader
from gateway.core import FinishReason
from gateway.engine_kinds.vllm.parity import CHATS, TEXTS, compare_prompts
from gateway.evidence import Http
from gateway.language import ModelLanguage
from tests.contract.vllm_bodies import list_requests
from tests.contract.vllm_releases import NEWEST, find_python
from tests.parity.case import TEXT, Case, Refused, Relayed
from tests.parity.cases import CASES
from tests.parity.differences import DIFFERENCES

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(STARTUP_S + 60)]
REQUESTS = list_requests()
JSON = {"content-type": "application/json"}
# Rows of the table that docs/api.md repeats: what the gateway shows the model there is not what vLLM does.
LISTED = {
    row.seen_in
    for row in DIFFERENCES
    if row.field in {'`tool_choice: "none"`', "`refusal` of an earlier message", "an empty text part"}
}
RENDERED = [case for case in CASES if not isinstance(case.expected, Refused | Relayed) and case.vllm_refuses is None]


@dataclass(frozen=True, slots=True)
class Site:
    """Both URLs without /v1."""

    gateway: str
    vllm: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The newest vLLM and a gateway before it, which has no other backend."""
    find_python()
    folder = tmp_path_factory.mktemp("newest")
    port, at = find_free(2)
    engine = vllm(STACKS / "vllm", at)
    engine = replace(engine, environment={**engine.environment, **NEWEST.variables})
    found = Site(f"http://{LOCALHOST}:{port}", f"http://{LOCALHOST}:{at}")
    with Supervisor(folder / "logs") as supervisor:
        for process in (engine, configure(folder, port, found.vllm)):
            supervisor.start(process)
        supervisor.wait_until_ready(STARTUP_S, lambda *_: None)
        yield found


def configure(folder: Path, port: int, engine: str) -> Process:
    backends = {"vllm": {"kind": "vllm", "url": engine, "connect_timeout_s": 15.0}}
    models = [{"id": MODEL, "tokenizer": str(WEIGHTS), "backends": backends}]
    path = folder / "crossover.yaml"
    path.write_text(yaml.safe_dump({"listen": f"{LOCALHOST}:{port}", "models": models}))
    return gateway(path, port)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        yield session


async def test_it_is_the_newest_release(site: Site, session: aiohttp.ClientSession) -> None:
    async with session.get(f"{site.vllm}/version") as response:
        assert (await response.json())["version"] == NEWEST.version


@pytest.mark.parametrize("case", RENDERED, ids=attrgetter("name"))
async def test_prompt_ids_are_vllms_but_for_the_listed(site: Site, session: aiohttp.ClientSession, case: Case) -> None:
    ours, theirs = await asyncio.gather(
        read_ours(session, f"{site.gateway}{case.path}", case), read_theirs(session, f"{site.vllm}{case.path}", case)
    )
    assert (ours == theirs) == (case.name not in LISTED), (ours, theirs)


async def read_ours(session: aiohttp.ClientSession, url: str, case: Case) -> list[list[int]]:
    """Of each prompt of the body, once."""
    body = {**case.request(stream=False), "return_token_ids": True}
    async with session.post(url, json=body) as response:
        document = await response.json()
    if case.path != TEXT:
        return [document["prompt_token_ids"]]
    choices = int(str(body.get("n", 1)))
    return [choice["prompt_token_ids"] for choice in document["choices"][::choices]]


async def read_theirs(session: aiohttp.ClientSession, url: str, case: Case) -> list[list[int]]:
    async with session.post(f"{url}/render", json=case.request(stream=False)) as response:
        rendered = await response.json()
    return [request["token_ids"] for request in (rendered if isinstance(rendered, list) else [rendered])]


async def test_the_doctors_comparison_finds_no_difference(site: Site) -> None:
    http = Http()
    compared = await compare_prompts(http, site.vllm, ModelLanguage.load(WEIGHTS))
    await http.aclose()
    assert compared == (len(TEXTS), len(CHATS), None)


@pytest.mark.parametrize("number", range(len(REQUESTS)))
async def test_it_answers_every_body_of_the_adapter(site: Site, session: aiohttp.ClientSession, number: int) -> None:
    route, asked = REQUESTS[number]
    is_scored = asked.params.logprobs is not None or asked.params.prompt_logprobs is not None
    answer = ScoredEventReader("vllm", asked) if is_scored else EventReader("vllm", asked)
    async with session.post(site.vllm + route, data=encode(route, asked, f"call-{number}"), headers=JSON) as response:
        data = await response.read()
    if isinstance(answer, ScoredEventReader):
        assert list(answer.scores(data))
    token_ids, end = answer.read(data)
    assert 0 < len(token_ids) <= asked.params.max_tokens
    assert isinstance(end, FinishReason)

"""The promises of deploy/haproxy, with real processes on hosts of their own: two gateways, HAProxy and clients."""

import asyncio
import shutil
import signal
from asyncio import IncompleteReadError
from collections.abc import AsyncIterator, Sequence

import orjson
import pytest

from tests.deploy.balanced import SOON_S, Site, balanced
from tests.deploy.namespaces import why_not
from tests.serving.stack import RawAnswer, RawClient, eventually

pytestmark = pytest.mark.timeout(240)  # the first starts two gateways and HAProxy, and some start one again
LONG = 200_000  # bytes of a body, which take some 50,000 tokens; HAProxy by default keeps 16,384


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; everything else has its own processes


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    missing = why_not() or (None if shutil.which("haproxy") else "haproxy is not installed")
    if missing:
        pytest.skip(f"two hosts behind a balancer cannot be had here: {missing}")
    async with balanced(tmp_path_factory.mktemp("balanced")) as site:
        yield site


@pytest.fixture
async def site(shared: Site) -> Site:
    """The shared site, at rest."""
    await shared.rest()
    return shared


async def all_answers(clients: Sequence[RawClient]) -> list[RawAnswer]:
    async with asyncio.timeout(SOON_S):
        return list(await asyncio.gather(*(client.answer() for client in clients)))


def is_whole(answer: RawAnswer) -> bool:
    if answer.status != 200:
        return False
    if answer.headers["content-type"].startswith("text/event-stream"):
        return answer.body.endswith(b"data: [DONE]\n\n")
    return orjson.loads(answer.body)["choices"][0]["finish_reason"] == "stop"  # type: ignore[no-any-return]  # JSON


async def first_events(clients: Sequence[RawClient]) -> None:
    """Every one of them has its first event, and more is to come."""
    async with asyncio.timeout(SOON_S):
        await asyncio.gather(*(client.until(b"data: ") for client in clients))


async def is_cut(client: RawClient) -> bool:
    """The connection ends before the answer does, so that no client can take it for whole."""
    async with asyncio.timeout(SOON_S):
        try:
            await client.until(b"[DONE]")
        except (IncompleteReadError, ConnectionResetError):
            return True
    return False


async def test_what_has_no_byte_of_an_answer_survives_a_node_killed_with_signal_9(site: Site) -> None:
    """Answers that are not streamed, and streams that have not begun, come whole from the other node."""
    one, two = site.nodes
    begun = await site.ask(10, stream=True)
    await first_events(begun)
    to_be_cut = one.arrived
    site.prepare(begins=False)
    waiting = [*await site.ask(10, stream=True), *await site.ask(10), *await site.ask(10, length=LONG)]
    to_be_moved = one.arrived - to_be_cut
    assert to_be_cut >= 4
    assert to_be_moved >= 14
    one.kill()
    await one.ended()
    await eventually(lambda: two.arrived == 40 - to_be_cut, SOON_S)
    two.release()
    assert all(map(is_whole, await all_answers(waiting)))
    assert [await is_cut(client) for client in begun].count(True) == to_be_cut
    assert one.engine.running == 0  # the closed connections cancelled its work
    site.answer_at_once()
    assert is_whole(await site.answer())


async def test_a_node_that_gets_sigterm_cuts_nothing_off(site: Site) -> None:
    one, two = site.nodes
    begun = await site.ask(10, stream=True)
    await first_events(begun)
    site.prepare(begins=False)
    waiting = [*await site.ask(10, stream=True), *await site.ask(10)]
    taken = one.arrived
    assert taken >= 14
    one.signal(signal.SIGTERM)
    await site.goes_down(one)  # it does not accept any more
    later = await site.ask(5, stream=True)
    assert (one.arrived, two.arrived) == (taken, 35 - taken)
    for node in site.nodes:
        node.release()
    assert all(map(is_whole, await all_answers(waiting + later)))
    assert not any([await is_cut(client) for client in begun])
    assert await one.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_request_of_a_steady_load_fails_while_a_node_restarts(site: Site, number: signal.Signals) -> None:
    """Sixteen clients that ask again as soon as they are answered, none of them twice for the same."""
    one, _ = site.nodes
    site.answer_at_once()
    answers: list[RawAnswer] = []
    is_over = asyncio.Event()

    async def keep_asking() -> None:
        while not is_over.is_set():
            answers.append(await site.answer())

    async with asyncio.TaskGroup() as clients:
        for _ in range(16):
            clients.create_task(keep_asking())
        await eventually(lambda: len(answers) >= 100, SOON_S)
        one.signal(number)
        await one.ended()
        before = one.arrived
        await eventually(lambda: one.engine.running == 0, SOON_S)
        await one.start()
        await site.comes_up(one)
        await eventually(lambda: one.arrived > before, SOON_S)
        is_over.set()
    assert len(answers) > 200
    assert all(map(is_whole, answers))


async def test_a_node_that_vanishes_without_a_word_loses_what_it_had_begun_and_nothing_else(site: Site) -> None:
    one, two = site.nodes
    begun = await site.ask(4, stream=True)
    await first_events(begun)
    to_be_cut = one.arrived
    assert to_be_cut > 0
    site.prepare(begins=False)
    waiting = await site.ask(4)
    one.host.vanish()
    try:
        later = await site.ask(4)  # nobody can know yet
        await eventually(lambda: two.arrived == 12 - to_be_cut, within_s=40)
        two.release()
        assert all(map(is_whole, await all_answers(waiting + later)))
        assert [await is_cut(client) for client in begun].count(True) == to_be_cut
    finally:
        one.host.reappear()


@pytest.mark.parametrize("begins", [True, False], ids=["mid-stream", "before the first byte"])
async def test_a_client_that_leaves_frees_its_place_in_the_engine_behind_the_balancer(site: Site, begins: bool) -> None:
    site.prepare(begins=begins)
    clients = await site.ask(4, stream=True)
    if begins:
        await first_events(clients)
    for client in clients:
        client.leave()
    await eventually(lambda: all(node.engine.running == 0 for node in site.nodes), SOON_S)


async def test_a_node_whose_engine_is_not_ready_gets_nothing(site: Site) -> None:
    one, two = site.nodes
    one.engine.is_healthy = False
    site.answer_at_once()
    try:
        # The first of them may reach it before either prober has noticed: its 503 is tried elsewhere.
        for _ in range(20):
            assert is_whole(await site.answer())
        await site.goes_down(one)
    finally:
        one.engine.is_healthy = True
    assert one.arrived + two.arrived == 20


@pytest.mark.parametrize("path", ["/admin/state", "/metrics", "/%61dmin/state", "/console", "/v1/../admin/state"])
async def test_what_operators_ask_is_not_answered_through_the_balancer(site: Site, path: str) -> None:
    client = await site.connect()
    client.send("GET", path)
    answer = await client.answer()
    assert answer.status == 404
    assert orjson.loads(answer.body)["error"]["code"] in {"unknown_url", None}


async def test_with_no_node_left_clients_get_an_error_in_openais_form(site: Site) -> None:
    for node in site.nodes:
        node.signal(signal.SIGKILL)
        await node.ended()
    answer = await site.answer()
    assert answer.status == 503
    assert orjson.loads(answer.body)["error"]["code"] == "no_node"

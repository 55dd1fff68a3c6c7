"""A watch over an engine on a real socket: what it publishes, and what it says in the log. The ledger is a count."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.background import running
from gateway.engine_kinds import ENGINE_KINDS
from gateway.evidence import Change, Evidence, Place, open_engines
from gateway.evidence.stale_warning import StaleWarning
from gateway.evidence.watch import Watch
from gateway.settings import EvidenceSettings, ModelSettings, VLLMSettings
from tests.evidence.pages_server import PagesServer
from tests.fakes.sink import settled

PLACE = Place("m", "vllm")
SETTINGS = EvidenceSettings(interval_s=0.02, drift_for_s=30.0)


@dataclass
class Site:
    """One engine, and all that surrounds its watch."""

    pages: PagesServer
    watch: Watch
    held: dict[Place, int]
    published: dict[Place, Evidence] = field(default_factory=dict)
    now: float = 0.0

    def engine_holds(self, running: int, waiting: int = 0) -> None:
        page = f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
        self.pages.pages["/metrics"] = (200, page.encode())

    def engine_is(self, version: str) -> None:
        self.pages.pages["/version"] = (200, b'{"version":"%s"}' % version.encode())

    async def look(self, after_s: float = 10.0) -> Evidence:
        self.now += after_s
        return await self.watch.look()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """The engine is behind two models, as when one server answers to two names."""
    async with PagesServer().serving() as pages:
        models = [ModelSettings(name, Path(), {"vllm": VLLMSettings("vllm", pages.url)}) for name in ("m", "alias")]
        async with open_engines(models, ENGINE_KINDS) as (engine,):
            held = {PLACE: 0, Place("alias", "vllm"): 0}
            site = Site(pages, None, held)  # type: ignore[arg-type]  # made on the next line, of the site itself
            site.watch = Watch(engine, held.__getitem__, SETTINGS, site.published.__setitem__, lambda: site.now)
            yield site


async def test_an_engine_that_holds_what_it_was_sent_does_not_drift(site: Site) -> None:
    site.engine_holds(3, waiting=2)
    site.held |= {PLACE: 4, Place("alias", "vllm"): 1}
    seen = await site.look()
    assert (seen.in_flight, seen.drift, seen.read_at) == (5, 0, site.now)
    assert site.published == dict.fromkeys(site.held, seen)


async def test_what_strangers_send_is_drift_and_later_a_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.evidence")
    site.held[PLACE] = 8
    for foreign in (15, 12, 30):
        site.engine_holds(8 + foreign)
        assert (await site.look()).drift == foreign
    assert not caplog.records
    site.engine_holds(8 + 13)
    assert (await site.look()).steady_drift == 12
    await site.look()
    site.engine_holds(8)
    await site.look()
    warning, relief = (record.getMessage() for record in caplog.records)
    assert warning.startswith(
        "vllm (m), also vllm (alias) holds 12 requests more than this gateway has sent it, for 30 s"
    )
    assert relief.endswith("holds again what it was sent")


async def test_a_few_percent_under_load_are_no_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.held[PLACE] = 200
    site.engine_holds(190)
    seen = [await site.look() for _ in range(5)][-1]
    assert (seen.drift, seen.steady_drift) == (-10, -10)
    assert not caplog.records
    site.engine_holds(180)
    for _ in range(3):
        await site.look()
    assert not caplog.records  # one reading of the last 30 s is still within the few percent
    await site.look()
    assert "holds 20 requests fewer" in caplog.text


async def test_an_engine_that_tells_nothing_is_unknown_and_no_drift(site: Site) -> None:
    site.held[PLACE] = 5
    site.engine_is("1")
    seen = await site.look()
    assert (seen.in_flight, seen.drift, seen.steady_drift) == (None, None, None)
    assert seen.identity == {"engine": "vllm", "version": "1"}


async def test_an_engine_that_goes_is_unknown_but_still_who_it_was(site: Site) -> None:
    site.engine_is("1")
    site.engine_holds(2)
    assert (await site.look()).in_flight == 2
    site.pages.pages = dict.fromkeys(site.pages.pages, (503, b""))
    seen = await site.look()
    assert (seen.in_flight, seen.drift) == (None, None)
    assert seen.identity == {"engine": "vllm", "version": "1"}
    site.engine_is("2")
    site.engine_holds(0)
    assert (await site.look()).identity["version"] == "2"


async def test_it_asks_again_and_again_and_stops_on_leaving(site: Site) -> None:
    site.engine_holds(1)
    async with running(site.watch.run()):
        await settled(lambda: site.pages.asked.count("/metrics") >= 3, "asked only once or twice")
        site.engine_holds(4)
        await settled(lambda: site.published[PLACE].in_flight == 4, repr(site.watch))
    asked = len(site.pages.asked)
    await asyncio.sleep(5 * SETTINGS.interval_s)
    assert len(site.pages.asked) == asked


async def test_what_an_engine_tells_at_length_is_cut(site: Site) -> None:
    site.engine_is("1" * 10_000)
    assert (await site.look()).identity["version"] == "1" * 256


def test_stale_engines_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.evidence")
    warning = StaleWarning()
    changes = (Change("vllm", "version", "1", "2"), Change("triton", "max_batch_size", 64, 128))
    for seen in ((), changes, changes, (), ()):
        warning.feed("m", seen)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "(vllm version was 1, is 2; triton max_batch_size was 64, is 128)" in caplog.text

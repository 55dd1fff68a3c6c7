"""The use of keys by day, as it is written and read again."""

import asyncio
import logging
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access import Access, KeyFile, Keyring, Meter
from gateway.access import access as access_module
from gateway.access.hosts import OwnHosts
from gateway.access.usage import FILE, KEPT_DAYS, DayUse, UsageLog
from gateway.shared import Memory
from gateway.state_folder import locked

ALWAYS = (date.min, date.max)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


async def test_several_workers_add_to_the_same_day(tmp_path: Path) -> None:
    logs = [UsageLog(tmp_path), UsageLog(tmp_path)]
    for _ in range(2):
        for log in logs:
            log.count("alice", (10, 5))
            log.count("bob", (1, 0))
            await log.write()
    today = datetime.now(UTC).date().isoformat()
    expected = [DayUse(today, "alice", 4, 40, 20), DayUse(today, "bob", 4, 4, 0)]
    assert list(logs[0].read(*ALWAYS)) == expected
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


async def test_old_days_go_and_days_are_chosen(tmp_path: Path) -> None:
    log = UsageLog(tmp_path)
    log.count("alice", (1, 1))
    await log.write()
    today = datetime.now(UTC).date()
    days = [today - timedelta(days=KEPT_DAYS + 1), today - timedelta(days=KEPT_DAYS)]
    with closing(sqlite3.connect(tmp_path / FILE)) as base, base:
        base.executemany("INSERT INTO usage VALUES (?, 'alice', 1, 1, 1)", [(day.isoformat(),) for day in days])
    log.count("alice", (1, 1))
    await log.write()
    assert [use.day for use in log.read(*ALWAYS)] == [days[1].isoformat(), today.isoformat()]
    assert [use.requests for use in log.read(today, today)] == [2]


async def test_what_cannot_be_written_is_kept_and_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_bytes(b"")
    log = UsageLog(tmp_path / "state")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            log.count("alice", (10, 5))
            await log.write()
    assert len(caplog.records) == 1
    (tmp_path / "state").unlink()
    await log.write()
    assert [use[1:] for use in log.read(*ALWAYS)] == [("alice", 3, 30, 15)]


async def test_nothing_that_goes_wrong_loses_counts(tmp_path: Path) -> None:
    log = UsageLog(tmp_path)
    log.count("alice", (10 + 2**70, 5))  # beyond SQLite's integers
    await log.write()
    log.count("alice", (-(2**70), 0))
    await log.write()
    assert [use[1:] for use in log.read(*ALWAYS)] == [("alice", 2, 10, 5)]


async def test_who_has_the_folder_holds_up_no_counts(tmp_path: Path) -> None:
    log = UsageLog(tmp_path)
    log.count("alice", (1, 1))
    await log.write()
    log.count("alice", (1, 1))
    with locked(tmp_path):
        async with asyncio.timeout(2):
            await log.write()
    assert [use.requests for use in log.read(*ALWAYS)] == [2]


async def test_a_failed_sweep_ends_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Meter) -> None:
        raise ValueError("sick")

    monkeypatch.setattr(Meter, "sweep", fail)
    monkeypatch.setattr(access_module, "KEEP_S", 0.01)
    log = UsageLog(tmp_path)
    meter = Meter(Memory())
    kept = Access(Keyring(None, KeyFile(tmp_path)), OwnHosts("127.0.0.1:0", ()), meter, log, open_metrics=False)
    async with kept.keeping():
        await asyncio.sleep(0.05)
        log.count("alice", (1, 1))
        await asyncio.sleep(0.1)
        assert [use.requests for use in log.read(*ALWAYS)] == [1]
    assert "sick" in caplog.text


async def test_a_file_that_is_none_of_ours_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no base" * 1000)
    log = UsageLog(tmp_path)
    log.count("alice", (10, 5))
    await log.write()
    assert [use.key for use in log.read(*ALWAYS)] == ["alice"]
    assert (tmp_path / f"{FILE}.unreadable-1").exists()

"""What keys use, as several processes count it: exactly, over ends and restarts, and what is given back."""

import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.access import Ask, Caller, Claim, Limits, Meter, Use
from gateway.access import meter as meter_module
from gateway.access.limits import check, describe
from gateway.errors import BudgetSpent, RateLimited

NONE = Use(0, 0, 0, 0)
DAY_NS = 86_400 * 10**9
ONE = Ask(1, 10, 90)  # a hundred tokens
ANOTHER_PROCESS = """
import sys
from pathlib import Path
from gateway.access import Ask, Caller, Limits, Meter
meter = Meter.open(Path(sys.argv[1]))
claim = meter.claim(Caller("alice", frozenset(), Limits(in_flight=9)), Ask(3, 10, 90))
print("claimed", flush=True)
sys.stdin.read()
"""


def caller(name: str = "alice", **limits: Any) -> Caller:  # Any: of Limits
    return Caller(name, frozenset(), Limits(**limits))


def take(meters: list[Meter], who: Caller, ask: Ask = ONE, tries: int = 50) -> list[tuple[Meter, Claim]]:
    """Claims at each in turn, as often as it is let."""
    taken = []
    for number in range(tries):
        meter = meters[number % len(meters)]
        try:
            taken.append((meter, meter.claim(who, ask)))
        except RateLimited:
            continue
    return taken


@pytest.fixture
def meters(tmp_path: Path) -> list[Meter]:
    return [Meter.open(tmp_path), Meter.open(tmp_path)]


def test_requests_a_minute_are_exact_over_two_processes(meters: list[Meter]) -> None:
    assert len(take(meters, caller(requests_per_minute=20))) == 20
    with pytest.raises(RateLimited, match="key alice is 20 requests a minute") as caught:
        meters[0].claim(caller(requests_per_minute=20), ONE)
    assert (caught.value.retry_after_s, caught.value.status) == (3, 429)


def test_a_minute_has_room_again_bit_by_bit(meters: list[Meter]) -> None:
    who = caller(requests_per_minute=1200)  # one each 50 ms
    assert len(take(meters, who, tries=1300)) in range(1200, 1300)
    time.sleep(0.12)
    assert len(take(meters, who, tries=10)) in {2, 3}


def test_tokens_are_reserved_on_entry_and_settled_at_the_end(meters: list[Meter]) -> None:
    who = caller(tokens_per_minute=1000)
    taken = take(meters, who)
    assert len(taken) == 10
    for meter, claim in taken:
        meter.settle(claim, (10, 10))  # of the 100
    use = meters[1].read("alice", Limits(tokens_per_minute=1000))
    assert use.tokens_per_minute in range(195, 201)
    assert len(take(meters, who)) == 8


def test_without_a_clients_limit_an_answer_is_taken_to_be_as_long_as_those_of_late(meters: list[Meter]) -> None:
    who, unlimited = caller(tokens_per_minute=10**6), Ask(1, 10, None)
    first = meters[0].claim(who, unlimited)
    assert first.tokens == 10 + meter_module.UNKNOWN  # nothing is known
    meters[0].settle(first, (10, 390))
    assert meters[1].claim(who, unlimited).tokens == 400


def test_a_few_short_answers_do_not_let_in_hundreds_at_once(meters: list[Meter]) -> None:
    who, unlimited = caller(tokens_per_minute=10_000), Ask(1, 20, None)
    for _ in range(3):
        meters[0].settle(meters[0].claim(who, unlimited), (20, 1))
    assert len(take(meters, who, unlimited, tries=100)) < 40
    assert meters[0].claim(caller("bob", tokens_per_minute=100), unlimited).tokens == 20 + 100 // 4


def test_no_mean_makes_a_request_too_large_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [20_000 * DAY_NS]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    meter = Meter.open(tmp_path)
    meter.settle(meter.claim(caller(in_flight=1), ONE), (10, 5000))
    now[0] += 3600 * 10**9
    assert meter.claim(caller(tokens_per_minute=600), Ask(1, 10, None)).tokens == 600


def test_choices_in_flight_are_exact_and_come_back(meters: list[Meter]) -> None:
    who = caller(in_flight=7)
    taken = take(meters, who, Ask(2, 10, 90))
    assert len(taken) == 3
    assert len(take(meters, who)) == 1
    meter, claim = taken[0]
    meter.settle(claim, (0, 0))
    assert len(take(meters, who, Ask(2, 10, 90))) == 1


def test_a_day_has_its_tokens_and_ends_at_midnight(meters: list[Meter], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [20_000 * DAY_NS + 3600 * 10**9]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] / 1e9)
    who = caller(tokens_per_day=250)
    taken = take(meters, who)
    with pytest.raises(RateLimited, match=r"key alice is 250 tokens a day \(UTC\): 200 are in use") as reserved:
        meters[0].claim(who, ONE)
    assert (type(reserved.value), reserved.value.retry_after_s) == (RateLimited, 1)  # two answers may leave some
    for (meter, claim), used in zip(taken, (30, 100), strict=True):
        meter.settle(claim, (10, used))
    (last,) = take(meters, who)  # 150 of 250 are spent, 100 are reserved
    last[0].settle(last[1], (10, 90))
    with pytest.raises(BudgetSpent) as caught:
        meters[0].claim(who, ONE)
    assert caught.value.retry_after_s == 23 * 3600
    assert (b"x-should-retry", b"false") in caught.value.fields
    now[0] += 23 * 3600 * 10**9
    assert len(take(meters, who)) == 2


def test_a_change_of_limits_keeps_what_is_counted(meters: list[Meter]) -> None:
    assert len(take(meters, caller(requests_per_minute=10, in_flight=4))) == 4
    assert len(take(meters, caller(requests_per_minute=10, in_flight=6))) == 2
    assert len(take(meters, caller(requests_per_minute=10))) == 4


def test_a_clock_that_goes_back_locks_nobody_out(meters: list[Meter], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [20_000 * DAY_NS]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    who = caller(requests_per_minute=10)
    assert len(take(meters, who)) == 10
    now[0] -= 30 * DAY_NS
    assert not take(meters, who)
    now[0] += 6 * 10**9
    assert len(take(meters, who)) == 1


def test_counts_outlive_their_processes_and_the_file_is_private(tmp_path: Path) -> None:
    meter = Meter.open(tmp_path)
    meter.settle(meter.claim(caller(tokens_per_day=250), ONE), (100, 100))
    later = Meter.open(tmp_path)
    assert later.read("alice", Limits()) == Use(0, 0, 0, 200)
    assert stat.S_IMODE((tmp_path / meter_module.FILE).stat().st_mode) == 0o600


def test_what_a_killed_process_had_under_way_comes_back(tmp_path: Path) -> None:
    meter = Meter.open(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        meter.sweep()
        assert meter.read("alice", Limits()) == Use(0, 280, 3, 280, 280)
        other.kill()
        other.wait()
    meter.sweep()
    assert meter.read("alice", Limits()) == NONE
    assert Meter.open(tmp_path).read("alice", Limits()) == NONE


def test_what_nobody_has_under_way_comes_back_whoever_left_it(meters: list[Meter], tmp_path: Path) -> None:
    meters[0].settle(meters[0].claim(caller(), ONE), (0, 0))
    with (tmp_path / meter_module.FILE).open("r+b") as file:  # as after a loss of power: of a column that nobody has
        file.seek(8 * meter_module.ROWS * meter_module.ROW + 5 * meter_module.COLUMN * 8)
        file.write(b"\x04")
    assert meters[1].read("alice", Limits()).in_flight == 4
    meters[1].sweep()
    assert meters[1].read("alice", Limits()) == NONE


def test_a_file_that_was_cut_off_is_mended(meters: list[Meter], tmp_path: Path) -> None:
    claim = meters[0].claim(caller(in_flight=9), ONE)
    os.truncate(tmp_path / meter_module.FILE, 0)
    meters[0].sweep()
    status = (tmp_path / meter_module.FILE).stat()
    assert (status.st_size, status.st_blocks * 512 >= meter_module.SIZE) == (meter_module.SIZE, True)
    meters[0].settle(claim, (10, 90))
    assert meters[1].read("alice", Limits()) == NONE
    assert len(take(meters, caller(in_flight=3))) == 3  # and not one more


def test_a_file_with_holes_is_filled(tmp_path: Path) -> None:
    (tmp_path / meter_module.FILE).touch()
    os.truncate(tmp_path / meter_module.FILE, meter_module.SIZE)
    Meter.open(tmp_path)
    assert (tmp_path / meter_module.FILE).stat().st_blocks * 512 >= meter_module.SIZE


def test_a_false_usage_locks_no_key_for_days(meters: list[Meter]) -> None:
    who = caller(tokens_per_minute=1000)
    meters[0].settle(meters[0].claim(who, ONE), (10**9, 0))
    assert meters[0].read("alice", Limits(tokens_per_minute=1000)).tokens_per_minute <= 10_000


def test_what_came_before_a_limit_does_not_empty_its_bucket(meters: list[Meter]) -> None:
    before = meters[0].claim(caller(in_flight=99), ONE)
    who = caller(requests_per_minute=20, tokens_per_minute=10_000)
    assert len(take(meters, who)) == 20
    meters[1].settle(before, (10, 90))
    assert not take(meters, who)


@pytest.mark.parametrize("limits", [{}, {"in_flight": 99}])
def test_a_minute_whose_limit_was_taken_away_begins_anew(meters: list[Meter], limits: Mapping[str, Any]) -> None:
    who = caller(requests_per_minute=10, tokens_per_minute=1000)
    for meter, claim in take(meters, who):
        meter.settle(claim, (10, 90))
    assert not take(meters, who)
    meters[0].settle(meters[0].claim(caller(**limits), ONE), (10, 90))
    assert len(take(meters, who)) == 10


def test_a_limit_that_was_lowered_locks_its_key_for_a_minute_at_most(
    meters: list[Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [20_000 * DAY_NS]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    claim = meters[0].claim(caller(tokens_per_minute=10**6), ONE)
    meters[0].settle(claim, (10**6, 0))
    assert not take(meters, caller(tokens_per_minute=100))
    now[0] += 60 * 10**9
    assert len(take(meters, caller(tokens_per_minute=100))) == 1


def test_more_keys_than_rows_take_turns(meters: list[Meter]) -> None:
    held = meters[0].claim(caller("held", in_flight=1), ONE)
    for number in range(meter_module.ROWS + 5):
        claim = meters[number % 2].claim(caller(f"key-{number}", in_flight=1), ONE)
        meters[number % 2].settle(claim, (0, number))
    assert meters[1].read("key-0", Limits()) == NONE  # the one unused for longest
    assert meters[1].read(f"key-{number}", Limits()).tokens_per_day == number
    assert meters[1].read("held", Limits()).in_flight == 1
    meters[0].settle(held, (0, 0))


def test_a_folder_that_cannot_be_used_leaves_each_worker_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        meters = [Meter.open(tmp_path / "state") for _ in range(2)]
    assert "cannot be used" in caplog.text
    assert len(take(meters, caller(in_flight=2))) == 4


@pytest.mark.parametrize(
    ("limits", "use", "fields"),
    [
        (Limits(in_flight=3), Use(9, 9, 1, 9), {}),
        (Limits(requests_per_minute=60), Use(1, 0, 0, 0), {"limit": b"60", "remaining": b"59", "reset": b"1s"}),
        (Limits(requests_per_minute=600), Use(1, 0, 0, 0), {"limit": b"600", "remaining": b"599", "reset": b"100ms"}),
        (Limits(requests_per_minute=10), Use(60, 0, 0, 0), {"limit": b"10", "remaining": b"0", "reset": b"6m0s"}),
    ],
)
def test_header_fields(limits: Limits, use: Use, fields: dict[str, bytes]) -> None:
    named = tuple((f"x-ratelimit-{name}-requests".encode(), value) for name, value in fields.items())
    assert describe(limits, use) == named


def test_what_can_never_be_let_in_is_said() -> None:
    with pytest.raises(RateLimited, match="It asks for more than there ever is"):
        check("alice", Limits(tokens_per_minute=100), NONE, Use(1, 101, 1, 101))

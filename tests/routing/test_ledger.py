"""The ledger: exact whatever happens between taking a slot and giving it back."""

import random
from collections.abc import Mapping

import pytest

from gateway.core import Route, State
from gateway.errors import BackendUnavailable
from gateway.routing.ledger import Lease
from tests.fakes.alone import make_ledger
from tests.routing.choices import Choose, place

STATE = State("triton", 0.0, 1)


def to(backend: str) -> Choose:
    return lambda _counts, state: (Route(backend, "test"), state)


def stand_on(side: str) -> Choose:
    return lambda _counts, _state: (Route(side, "test"), State(side, 1.0, 1))


def test_the_repr_tells_the_counts() -> None:
    ledger = make_ledger(["triton", "vllm"], STATE)
    for _ in range(3):
        place(ledger, to("triton"), steers=True)
    assert repr(ledger) == "<Ledger triton=3 vllm=0>"


def test_a_slot_released_twice_is_given_back_once() -> None:
    ledger = make_ledger(["triton"], STATE)
    first, _second = (place(ledger, to("triton"), steers=True) for _ in range(2))
    first.close()
    first.close()
    assert repr(ledger) == "<Ledger triton=1>"


@pytest.mark.parametrize(("steers", "steering"), [(True, 5), (False, 0)])
def test_a_slot_of_several_sequences_is_taken_and_given_back_as_one(steers: bool, steering: int) -> None:
    ledger = make_ledger(["triton", "vllm"], STATE)
    slot = place(ledger, to("vllm"), sequences=5, steers=steers)
    taken = ledger.read()
    assert (repr(ledger), taken.steering["vllm"], taken.workers) == ("<Ledger triton=0 vllm=5>", steering, (5,))
    slot.close()
    slot.close()
    given_back = ledger.read()
    assert (repr(ledger), given_back.steering["vllm"]) == ("<Ledger triton=0 vllm=0>", 0)


def test_a_choice_that_fails_counts_nothing_and_leaves_the_state() -> None:
    ledger = make_ledger(["triton"], STATE)

    def refuse(_counts: Mapping[str, int], _state: State) -> tuple[Route, State]:
        raise BackendUnavailable("down")

    with pytest.raises(BackendUnavailable):
        place(ledger, refuse, sequences=2, steers=True)
    assert ledger.read().in_flight == {"triton": 0}
    assert ledger.read().state is STATE


def test_what_does_not_steer_is_counted_but_not_shown_to_the_choice() -> None:
    ledger = make_ledger(["triton"], STATE)
    slot = place(ledger, to("triton"), steers=False)
    seen: list[dict[str, int]] = []

    def look(counts: Mapping[str, int], state: State) -> tuple[Route, State]:
        seen.append(dict(counts))
        return Route("triton", "test"), state

    place(ledger, look, steers=True).close()
    assert seen == [{"triton": 0}]
    assert ledger.read().in_flight == {"triton": 1}
    slot.close()
    assert (ledger.read().in_flight, ledger.read().steering) == ({"triton": 0}, {"triton": 0})


def test_changes_of_side_are_counted_and_replacements_are_not() -> None:
    ledger = make_ledger(["triton", "vllm"], STATE)
    for side in ("vllm", "vllm", "triton"):
        place(ledger, stand_on(side), steers=True)
    ledger.replace(lambda old, text: (State("vllm", old.since, 2), text))
    assert ledger.read().switches == 2
    assert ledger.read().state == State("vllm", 1.0, 2)


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_leases_releases_and_failures_leaks_or_goes_negative(seed: int) -> None:
    chance = random.Random(seed)
    names = ["triton", "vllm"]
    ledger = make_ledger(names, STATE)
    held: list[tuple[Lease, int, bool]] = []
    given_back: list[Lease] = []
    for _ in range(400):
        match chance.choice(["place", "place", "release", "again", "fail"]):
            case "place":
                steers, size = chance.random() < 0.7, chance.randrange(1, 5)
                held.append((place(ledger, to(chance.choice(names)), sequences=size, steers=steers), size, steers))
            case "release" if held:
                slot, *_ = held.pop(chance.randrange(len(held)))
                slot.close()
                given_back.append(slot)
            case "again" if given_back:
                chance.choice(given_back).close()
            case "fail":
                with pytest.raises(KeyError):
                    place(ledger, to("nobody"), steers=True)
        expected = {name: sum(size for slot, size, _ in held if slot.route.backend == name) for name in names}
        steering = {
            name: sum(size for slot, size, steers in held if steers and slot.route.backend == name) for name in names
        }
        assert ledger.read().in_flight == expected
        assert ledger.read().steering == steering
    for slot, *_ in held:
        slot.close()
    assert repr(ledger) == "<Ledger triton=0 vllm=0>"


def test_a_snapshot_does_not_change_afterwards() -> None:
    ledger = make_ledger(["triton"], STATE)
    before = ledger.read()
    place(ledger, to("triton"), steers=True)
    assert before.in_flight == {"triton": 0}

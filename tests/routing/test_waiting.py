"""The order in which requests that wait go on, over the workers of a node, and who is refused."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from gateway.core import Need
from gateway.errors import GatewayError, Overloaded
from gateway.routing.waiting import RATE_S, Ticket, WaitingRoom
from gateway.settings import QueueSettings
from tests.fakes.seats import make_seats
from tests.routing.conftest import Clock, request_of

QUEUE = QueueSettings(max_waiting=100, max_wait_s=30.0)


@dataclass
class Rooms:
    """Two workers' parts of a queue. `refused`: the names of requests, and their errors."""

    clock: Clock = field(default_factory=Clock)
    refused: dict[str, GatewayError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rooms: Sequence[WaitingRoom] = [WaitingRoom(seat, self.clock) for seat in make_seats(2)]

    def join(
        self,
        name: str,
        client: str = "someone",
        *,
        tokens: float = 100.0,
        priority: int = 0,
        worker: int = 0,
        queue: QueueSettings = QUEUE,
        is_picky: bool = False,
    ) -> Ticket:
        plain = request_of(request_id=name, needs={Need.MIN_P: "min_p"} if is_picky else {})
        request = replace(plain, params=replace(plain.params, priority=priority))
        ticket = Ticket(request, frozenset(), lambda _: None, lambda error: self.refused.update({name: error}))
        self.rooms[worker].join(ticket, client, tokens, queue)
        self.clock.now += 0.001
        return ticket

    def serve(self, count: int, worker: int = 0) -> list[str]:
        """Admits so many, and returns their names."""
        return list(self._serve(count, self.rooms[worker]))

    def _serve(self, count: int, room: WaitingRoom) -> Iterator[str]:
        for _ in range(count):
            if (ticket := next(room.list_next(), None)) is None:
                return
            room.admit(ticket)
            yield ticket.request.request_id

    def end(self, per_s: int, seconds: float) -> None:
        """Lets answers end at a steady rate."""
        for _ in range(int(seconds * 10)):
            for _ in range(per_s // 10):
                self.rooms[0].note_end()
            self.clock.now += 0.1
            for room in self.rooms:
                room.sample()


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


def test_one_client_is_served_in_the_order_of_its_requests(rooms: Rooms) -> None:
    for name in "abc":
        rooms.join(name)
    assert rooms.rooms[0].count == rooms.rooms[1].total == 3
    assert rooms.serve(5) == ["a", "b", "c"]
    assert not rooms.rooms[1].is_contended()


def test_a_higher_priority_goes_first(rooms: Rooms) -> None:
    for name, priority in (("low", 1), ("usual", 0), ("high", -1), ("high too", -1)):
        rooms.join(name, priority=priority)
    assert rooms.serve(4) == ["high", "high too", "usual", "low"]


def test_a_light_client_does_not_wait_behind_one_that_floods(rooms: Rooms) -> None:
    for index in range(20):
        rooms.join(f"flood {index}", "heavy")
    assert rooms.serve(3) == ["flood 0", "flood 1", "flood 2"]
    rooms.join("light", "light")
    assert rooms.serve(1) == ["light"]


def test_urgent_requests_of_one_that_floods_cost_others_no_turn(rooms: Rooms) -> None:
    for index in range(20):
        rooms.join(f"flood {index}", "heavy")
    rooms.join("urgent", "heavy", priority=-1)
    assert rooms.serve(2) == ["urgent", "flood 0"]
    rooms.join("light", "light")
    assert rooms.serve(1) == ["light"]


def test_turns_are_shared_by_tokens_not_by_requests(rooms: Rooms) -> None:
    for index in range(40):
        rooms.join(f"long {index}", "long", tokens=400.0)
        rooms.join(f"short {index}", "short", tokens=100.0)
    served = rooms.serve(25)
    assert sum(name.startswith("long") for name in served) == 5


def test_clients_are_known_to_all_workers(rooms: Rooms) -> None:
    for index in range(10):
        rooms.join(f"here {index}", "heavy", worker=0)
        rooms.join(f"there {index}", "heavy", worker=1)
    rooms.join("light", "light", worker=1)
    assert rooms.serve(1, worker=0) == ["here 0"]  # who came first
    assert rooms.serve(1, worker=1) == ["light"]
    assert rooms.serve(5, worker=0) == []  # what the other worker has came before
    assert rooms.serve(1, worker=1) == ["there 0"]


def test_a_dead_workers_requests_hold_up_nobody(rooms: Rooms) -> None:
    rooms.join("there", worker=1)
    rooms.join("here", worker=0)
    assert rooms.serve(1) == []
    rooms.rooms[0].clear(1)
    assert rooms.serve(1) == ["here"]


def test_a_worker_that_could_not_go_on_holds_up_nobody(rooms: Rooms) -> None:
    rooms.join("there", worker=1)
    rooms.join("here", worker=0)
    rooms.rooms[1].show(is_open=False)  # it finds no engine ready
    assert rooms.serve(1) == ["here"]
    assert not rooms.rooms[0].is_contended()
    rooms.rooms[1].show(is_open=True)
    assert rooms.rooms[0].is_contended()
    rooms.clock.now += 1.0  # it beats no more
    assert not rooms.rooms[0].is_contended()


@pytest.mark.parametrize(
    ("priority", "late_s", "passes"),
    [(-4, 0.3, False), (-4, 0.9, False), (-4, 1.1, True), (0, 0.1, False), (0, 0.3, True)],
)
def test_a_busy_workers_late_beat_lets_nobody_pass_its_urgent_ones(
    rooms: Rooms, priority: int, late_s: float, passes: bool
) -> None:
    rooms.join("before", priority=priority, worker=1)
    rooms.clock.now += late_s
    assert rooms.rooms[0].is_contended() == (late_s < 1)  # then what comes now waits too
    rooms.join("after", worker=0)
    assert rooms.serve(1, worker=0) == (["after"] if passes else [])


def test_who_waits_for_one_engine_alone_holds_up_nobody(rooms: Rooms) -> None:
    rooms.join("picky", is_picky=True)
    rooms.join("plain")
    assert [ticket.request.request_id for ticket in rooms.rooms[0].list_next()] == ["picky", "plain"]
    rooms.join("elsewhere", worker=1)
    assert rooms.serve(1, worker=1) == []  # plain came before
    rooms.rooms[0].leave(list(rooms.rooms[0].list_next())[-1])
    assert rooms.serve(1, worker=1) == ["elsewhere"]


def test_a_request_that_leaves_has_used_nothing(rooms: Rooms) -> None:
    gone = [rooms.join(f"gone {index}", "restless") for index in range(500 // 5)]
    for ticket in gone:
        rooms.rooms[0].leave(ticket)
        rooms.rooms[0].leave(ticket)
    assert not rooms.rooms[0].is_contended()
    rooms.join("back", "restless")
    rooms.join("other", "patient")
    assert rooms.serve(2) == ["back", "other"]


def test_a_request_that_leaves_lets_none_pass_those_before(rooms: Rooms) -> None:
    tickets = [rooms.join(name, "flood") for name in "abcd"]
    rooms.rooms[0].leave(tickets[1])
    rooms.join("e", "flood")
    rooms.rooms[0].leave(tickets[0])
    rooms.join("light", "light")
    rooms.join("f", "flood")
    assert rooms.serve(6) == ["light", "c", "d", "e", "f"]


def test_those_that_come_and_leave_take_no_room(rooms: Rooms) -> None:
    rooms.join("first", priority=-1)
    for index in range(2000):
        rooms.rooms[0].leave(rooms.join(f"gone {index}"))
    assert len(rooms.rooms[0]._tickets) < 30


def test_a_full_queue_refuses_the_last_in_order(rooms: Rooms) -> None:
    queue = replace(QUEUE, max_waiting=3)
    for name in ("a", "b", "c"):
        rooms.join(name, "heavy", queue=queue)
    with pytest.raises(Overloaded):
        rooms.join("d", "heavy", queue=queue)
    rooms.join("light", "light", queue=queue)
    assert list(rooms.refused) == ["c"]
    assert rooms.serve(5) == ["a", "light", "b"]


def test_a_queue_that_others_fill_in_another_worker_keeps_nobody_out(rooms: Rooms) -> None:
    queue = replace(QUEUE, max_waiting=4)
    for index in range(4):
        rooms.join(f"flood {index}", "heavy", queue=queue, worker=0)
    rooms.join("light", "light", queue=queue, worker=1)
    rooms.join("urgent", "heavy", queue=queue, worker=1, priority=-1)
    with pytest.raises(Overloaded):
        rooms.join("more", "heavy", queue=queue, worker=1)
    assert [ticket.request.request_id for ticket, _ in rooms.rooms[1].pop_due(4, 30.0)] == []
    assert [ticket.request.request_id for ticket, _ in rooms.rooms[0].pop_due(4, 30.0)] == ["flood 3", "flood 2"]
    assert rooms.serve(1, worker=1) == ["urgent"]
    assert rooms.serve(1, worker=0) == ["flood 0"]
    assert rooms.serve(1, worker=1) == ["light"]


@pytest.mark.parametrize("priority", [-(2**31), -16, -15, -8])
def test_priorities_that_pass_others_leave_their_turns(rooms: Rooms, priority: int) -> None:
    for index in range(5):
        rooms.join(f"flood {index}", "heavy")
        rooms.join(f"urgent {index}", "heavy", priority=priority)
    assert all(name.startswith("urgent") for name in rooms.serve(5))
    assert rooms.serve(1) == ["flood 0"]
    rooms.join("light", "light")
    assert rooms.serve(1) == ["light"]


def test_what_cannot_be_answered_in_time_is_refused_at_once(rooms: Rooms) -> None:
    queue = replace(QUEUE, max_wait_s=2.0)
    rooms.join("0", "heavy", queue=queue)
    rooms.end(per_s=10, seconds=RATE_S)
    for index in range(1, 18):
        rooms.join(str(index), "heavy", queue=queue)
    rooms.join("last", "heavy", queue=replace(queue, max_wait_s=9.0))
    rooms.join("very last", "heavy", queue=replace(queue, max_wait_s=9.0))
    with pytest.raises(Overloaded) as caught:
        rooms.join("late", "heavy", queue=queue)
    assert caught.value.retry_after_s in {2, 3}  # by then the 20 are served
    rooms.join("light", "light", queue=queue)
    rooms.join("urgent", "heavy", priority=-1, queue=queue)
    assert rooms.serve(1) == ["urgent"]


def test_answers_that_end_while_nobody_waits_are_no_measure_of_what_engines_can_do(rooms: Rooms) -> None:
    rooms.end(per_s=0, seconds=RATE_S)  # an idle time, and then more than there is room for
    rooms.rooms[0].note_end()
    for number in range(50):
        rooms.join(f"{number}")
    rooms.end(per_s=10, seconds=0.5)
    rooms.join("last")


def test_who_has_waited_too_long_is_taken_out(rooms: Rooms) -> None:
    rooms.join("old")
    rooms.clock.now += 20
    rooms.join("new")
    rooms.clock.now += 15
    ((ticket, error),) = rooms.rooms[0].pop_due(100, 30.0)
    assert ticket.request.request_id == "old"
    assert isinstance(error, Overloaded)
    assert rooms.serve(2) == ["new"]


def test_nobody_waits_where_no_time_is_allowed(rooms: Rooms) -> None:
    with pytest.raises(Overloaded):
        rooms.join("a", queue=replace(QUEUE, max_wait_s=0.0))

"""The thread that calls receivers, with receivers that hold it up."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from engines.adapters.deliveries import Deliveries
from engines.reference.engine import TokenOutput

PATIENCE_S = 10.0


class Receiver:
    """Keeps what each call brought; none returns before the receiver is open."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.calls: list[list[int] | str] = []
        self.called = threading.Event()
        self.opened = threading.Event()
        if is_open:
            self.opened.set()

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self._keep([output.token_id for output in outputs])

    def failed(self, message: str) -> None:
        self._keep(message)

    def _keep(self, call: list[int] | str) -> None:
        self.calls.append(call)
        self.called.set()
        assert self.opened.wait(PATIENCE_S)


class Noting(Receiver):
    """Also keeps who was served, in one list with others."""

    def __init__(self, served: list[Receiver], *, is_open: bool = True) -> None:
        super().__init__(is_open=is_open)
        self._served = served

    def tokens(self, outputs: Sequence[TokenOutput]) -> None:
        self._served.append(self)
        super().tokens(outputs)


def tokens(*ids: int, first: int = 1) -> list[TokenOutput]:
    """`first`: the place of the first of them in its answer."""
    return [TokenOutput("", token_id, None, None, place) for place, token_id in enumerate(ids, first)]


@pytest.fixture
def deliveries() -> Iterator[Deliveries]:
    with closing(Deliveries()) as deliveries:
        yield deliveries


def test_what_comes_while_a_receiver_is_busy_goes_to_it_in_one_call(deliveries: Deliveries) -> None:
    receiver = Receiver(is_open=False)
    deliveries.tokens(receiver, tokens(1))
    assert receiver.called.wait(PATIENCE_S)
    for token_id in (2, 3, 4):
        deliveries.tokens(receiver, tokens(token_id))
    receiver.opened.set()
    deliveries.close()
    assert receiver.calls == [[1], [2, 3, 4]]


def test_receivers_are_served_in_the_order_of_their_oldest_token(deliveries: Deliveries) -> None:
    served: list[Receiver] = []
    busy, first, second = Noting(served, is_open=False), Noting(served), Noting(served)
    deliveries.tokens(busy, tokens(0))
    assert busy.called.wait(PATIENCE_S)
    for receiver, token_id in ((first, 1), (second, 2), (first, 3)):
        deliveries.tokens(receiver, tokens(token_id, first=7))
    busy.opened.set()
    deliveries.close()
    assert served == [busy, first, second]
    assert (first.calls, second.calls) == ([[1, 3]], [[2]])


def test_an_answer_that_begins_comes_before_those_that_go_on(deliveries: Deliveries) -> None:
    served: list[Receiver] = []
    busy, older, new, newer = Noting(served, is_open=False), Noting(served), Noting(served), Noting(served)
    deliveries.tokens(busy, tokens(0))
    assert busy.called.wait(PATIENCE_S)
    deliveries.tokens(older, tokens(1, first=5))
    deliveries.tokens(new, tokens(2))
    deliveries.tokens(newer, tokens(3))
    deliveries.tokens(new, tokens(4, first=2))  # stays in its place, in one call with the first
    deliveries.failed(newer, "the engine failed")
    busy.opened.set()
    deliveries.close()
    assert served == [busy, new, newer, older]
    assert (new.calls, newer.calls, older.calls) == ([[2, 4]], [[3], "the engine failed"], [[1]])


def test_a_receiver_that_raises_is_logged_and_others_get_theirs_on_close(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Receiver):
        def tokens(self, outputs: Sequence[TokenOutput]) -> None:
            raise MemoryError("no shared memory left")

    deliveries, receiver = Deliveries(), Receiver()
    deliveries.tokens(Broken(), tokens(1))
    deliveries.tokens(receiver, tokens(1, 2))
    deliveries.close()
    assert receiver.calls == [[1, 2]]
    assert "no shared memory left" in caplog.text

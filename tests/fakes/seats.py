"""The seats of several workers in one map, as one process can have them all."""

from gateway.shared import Seat

SIZE = 16 * 1024 * 1024  # room for whatever a test takes; pages that are never written cost nothing


def make_seats(workers: int) -> tuple[Seat, ...]:
    first = Seat.found(SIZE, workers)
    assert first.memory.fd is not None
    return (first, *(Seat.take(workers, index, first.memory.fd) for index in range(1, workers)))

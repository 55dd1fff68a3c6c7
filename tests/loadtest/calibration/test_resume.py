from dataclasses import replace

from loadtest.calibration.resume import History
from loadtest.results.cell import Pair
from tests.loadtest.samples import CELL, make_pair


def test_nothing_was_measured() -> None:
    assert History.of([], "triton") == History()


def test_complete_pairs_count_and_a_half_one_waits_for_its_other_backend() -> None:
    cells = [*make_pair(4, 1.1, 0), *make_pair(8, 1.0, 3, low_first=False)[:1]]
    history = History.of(cells, "triton")
    assert list(history.cells) == cells[:2]
    assert history.half == (Pair(8, low_first=False, number=3), cells[2])
    assert history.next_number == 4


def test_a_pair_with_a_void_cell_is_left_out_whichever_cell_it_was() -> None:
    good, bad = make_pair(4, 1.1, 0)
    again = make_pair(4, 1.1, 1)
    history = History.of([good, replace(bad, void="a pause"), *again], "triton")
    assert (list(history.cells), history.half, history.voids, history.next_number) == (again, None, 1, 2)


def test_half_a_null_pair_continues_with_the_same_backend() -> None:
    cell = replace(CELL, backend="vllm", level=16, is_null=True)
    assert History.of([cell], "triton").half == (Pair(16, low_first=False, number=0, is_null=True), cell)

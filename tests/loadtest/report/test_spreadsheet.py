"""cells.csv as a spreadsheet reads it."""

import csv
import io
from dataclasses import fields, replace

from loadtest.report.spreadsheet import render_csv
from loadtest.results.cell import Cell
from loadtest.results.percentiles import Percentiles
from tests.loadtest.samples import CELL, make_cells


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_row_per_cell_in_the_order_measured_with_one_value_in_every_field() -> None:
    cells = make_cells({1: 1.2, 64: 0.9})
    rows = read(render_csv(cells))
    shown = [(row["backend"], int(row["level"]), int(row["pair"])) for row in rows]
    assert shown == [(cell.backend, cell.level, cell.pair) for cell in cells]
    assert [float(row["throughput_tok_s"]) for row in rows] == [cell.throughput for cell in cells]
    assert all(None not in row.values() and None not in row for row in rows)


def test_unknown_percentiles_are_empty_and_a_name_with_a_comma_stays_one_field() -> None:
    (row,) = read(render_csv([replace(CELL, backend='a,"b"', ttft_s=Percentiles(50, 0.02, 0.03))]))
    assert (row["backend"], row["level"]) == ('a,"b"', "1")
    assert (row["ttft_samples"], row["ttft_p50_s"], row["ttft_p90_s"], row["ttft_p99_s"]) == ("50", "0.02", "0.03", "")


def test_a_cell_that_was_measured_again_is_left_out_and_a_run_without_cells_has_headings() -> None:
    assert len(read(render_csv([CELL, replace(CELL, void="it paused")]))) == 1
    assert (render_csv([]).partition(",")[0], render_csv([]).count("\n")) == ("backend", 1)


def test_every_figure_of_a_cell_has_a_column() -> None:
    """All but the reason that leaves a cell out, and single GPUs; a new one has to be given a name with its unit."""
    columns = set(next(csv.reader(io.StringIO(render_csv([])))))
    known = {name.removesuffix("_samples") + "_s" for name in columns if name.endswith("_samples")} | columns
    renamed = {"throughput": "throughput_tok_s", "goodput": "goodput_requests_per_s", "client_cpu": "client_cpu_share"}
    renamed |= {"machine_load": "machine_load_per_core", "cached": "cached_prompt_share", "foreign": "foreign_share"}
    assert {renamed.get(field.name, field.name) for field in fields(Cell)} - known == {"void", "gpus"}

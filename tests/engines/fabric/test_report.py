"""Times and sizes as they are shown."""

import pytest

from engines.fabric.report import show_size, show_time


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(5e-7, "0.5 us"), (1.234e-5, "12.3 us"), (9.996e-4, "1 ms"), (0.0123, "12.3 ms"), (0.9996, "1 s"), (12.0, "12 s")],
)
def test_times_have_three_digits_and_a_unit(seconds: float, shown: str) -> None:
    assert show_time(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(4, "4 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"), (1 << 30, "1 GiB")]
)
def test_sizes_are_binary(size: int, shown: str) -> None:
    assert show_size(size) == shown

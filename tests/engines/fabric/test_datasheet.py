"""Which data sheet a GPU's name has, and what an operator puts in its place."""

import pytest

from engines.fabric.datasheet import DataSheet, find_data_sheet


@pytest.mark.parametrize(
    ("name", "link_gb_s", "memory_gb_s"),
    [
        ("NVIDIA H100 80GB HBM3", 450, 3350),
        ("NVIDIA H100 PCIe", 300, 2000),
        ("NVIDIA H100 NVL", 300, 3900),
        ("NVIDIA H200", 450, 4800),
        ("NVIDIA H200 NVL", 450, 4800),
        ("NVIDIA A100-SXM4-80GB", 300, 2039),
    ],
)
def test_a_gpu_is_known_by_its_name(name: str, link_gb_s: float, memory_gb_s: float) -> None:
    sheet = find_data_sheet(name)
    assert (sheet.link, sheet.memory) == (link_gb_s * 1e9, memory_gb_s * 1e9)


def test_a_card_between_two_bridges_is_no_board() -> None:
    assert "bridge" in find_data_sheet("NVIDIA H200 NVL").link_name
    assert "bridge" not in find_data_sheet("NVIDIA H200").link_name


def test_nothing_is_guessed_for_a_gpu_that_is_not_listed() -> None:
    assert find_data_sheet("NVIDIA GeForce RTX 4090") == DataSheet()


def test_what_an_operator_says_wins() -> None:
    sheet = find_data_sheet("NVIDIA H100 PCIe").overridden(64, None, 500)
    assert (sheet.link, sheet.link_name) == (64e9, "link as given")
    assert sheet.memory == 2000e9
    assert (sheet.flops_16, sheet.flops_8) == (500e12, 500e12)

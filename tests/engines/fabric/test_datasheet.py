"""Which data sheet a GPU's name has, and what an operator puts in its place."""

from engines.fabric.datasheet import DataSheet, find_data_sheet


def test_a_card_between_two_bridges_is_no_board() -> None:
    assert "bridge" in find_data_sheet("NVIDIA H200 NVL").link_name
    assert "bridge" not in find_data_sheet("NVIDIA H200").link_name


def test_nothing_is_guessed_for_a_gpu_that_is_not_listed() -> None:
    assert find_data_sheet("NVIDIA GeForce RTX 4090") == DataSheet()


def test_an_operators_numbers_win() -> None:
    sheet = find_data_sheet("NVIDIA H100 PCIe").overridden(64, None, 500)
    assert (sheet.link, sheet.link_name) == (64e9, "link as given")
    assert sheet.memory == 2000e9
    assert (sheet.flops_16, sheet.flops_8) == (500e12, 500e12)

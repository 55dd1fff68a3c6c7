"""The folder of LoRA adapters."""

from pathlib import Path

import pytest

from engines.adapters.arguments import ArgumentError
from engines.adapters.lora import lora_directories


def test_folders_that_hold_an_adapter_are_found_by_their_numbers(tmp_path: Path) -> None:
    for name in ("1", "12"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").touch()
    (tmp_path / "notes").mkdir()
    assert lora_directories({"lora_prefetch_dir": str(tmp_path)}) == {1: tmp_path / "1", 12: tmp_path / "12"}
    assert lora_directories({}) == {}


@pytest.mark.parametrize("name", ["0", "tuned", "-1"])
def test_adapter_whose_folder_is_no_number_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "adapter_config.json").touch()
    with pytest.raises(ArgumentError, match=f"{name}: the name has to be a number, from 1 on"):
        lora_directories({"lora_prefetch_dir": str(tmp_path)})


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot read lora_prefetch_dir"):
        lora_directories({"lora_prefetch_dir": str(tmp_path / "none")})

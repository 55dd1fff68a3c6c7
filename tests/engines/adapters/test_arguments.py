"""The file of an engine's own arguments: what it may hold, and the error for one that is wrong."""

from pathlib import Path

import pytest

from engines.adapters.arguments import ArgumentError, read_arguments

KNOWN = ("max_num_seqs", "tensor_parallel_size", "compilation_config")


def read(folder: Path, text: str) -> dict[str, object]:
    file = folder / "engine"
    file.write_text(text)
    return read_arguments({"engine_args": str(file)}, KNOWN)


def test_without_the_parameter_there_are_no_arguments() -> None:
    assert read_arguments({}, KNOWN) == read_arguments({"engine_args": ""}, KNOWN) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("max-num-seqs: 8\n", {"max_num_seqs": 8}),
        ('{"tensor_parallel_size": 2}', {"tensor_parallel_size": 2}),
        ("compilation_config:\n  cudagraph_mode: FULL\n", {"compilation_config": {"cudagraph_mode": "FULL"}}),
    ],
)
def test_json_and_yaml_give_arguments_whose_dashes_are_underscores(
    tmp_path: Path, text: str, expected: dict[str, object]
) -> None:
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq: 8\n", "max_num_seq is no argument of this engine; did you mean max_num_seqs?"),
        ("zzz: 8\n", "zzz is no argument of this engine"),
        ("model: /models/llama\n", "model is not set here: the parameter model_dir names it"),
        ("- 1\n", "expected names and values, got list"),
        ("{", "cannot read engine_args"),
    ],
)
def test_wrong_file_is_refused_with_its_name_and_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message) as raised:
        read(tmp_path, text)
    assert str(tmp_path / "engine") in str(raised.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="No such file"):
        read_arguments({"engine_args": str(tmp_path / "none.yaml")}, KNOWN)

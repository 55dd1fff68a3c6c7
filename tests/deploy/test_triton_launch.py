"""deploy/triton.sh as its container runs it, with stand-ins for mpirun and tritonserver that print their arguments."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.deploy.shipped import DEPLOY

PRINT = '#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "model_repo/tensorrt_llm").mkdir(parents=True)
    (tmp_path / "model_repo/tensorrt_llm/config.pbtxt").write_text('name: "tensorrt_llm"\n')
    (tmp_path / "bin").mkdir()
    for name in ("mpirun", "tritonserver"):
        (tmp_path / "bin" / name).write_text(PRINT)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "model_repo"


def launch(repository: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{repository.parent}/bin:{os.defpath}",
        "TRITON_MODEL_REPOSITORY": str(repository),
        **variables,
    }
    return subprocess.run([DEPLOY / "triton.sh"], env=environment, capture_output=True, text=True, check=False)


def test_one_rank_is_tritonserver_itself(repository: Path) -> None:
    command = launch(repository, TRITON_RANKS="1").stdout.splitlines()
    assert command[0] == "tritonserver"
    assert f"--model-repository={repository}" in command
    assert "--exit-timeout-secs=30" in command


def test_each_rank_has_shared_memory_of_its_own_and_the_first_alone_serves(repository: Path) -> None:
    command = launch(repository, TRITON_RANKS="4").stdout.splitlines()
    assert command[:2] == ["mpirun", "--allow-run-as-root"]
    ranks = " ".join(command[2:]).split(" : ")
    assert [rank.split()[:3] for rank in ranks] == [["-n", "1", "tritonserver"]] * 4
    for index, rank in enumerate(ranks):
        assert f"--backend-config=python,shm-region-prefix-name=prefix{index}_" in rank
        assert ("--model-control-mode=explicit --load-model=tensorrt_llm" in rank) == (index > 0)


def test_it_listens_on_one_address_where_the_network_is_the_hosts(repository: Path) -> None:
    command = launch(repository, TRITON_RANKS="1", TRITON_ADDRESS="127.0.0.1").stdout.splitlines()
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"} <= set(command)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "TRITON_RANKS: tensor x pipeline parallelism"),
        ({"TRITON_RANKS": "two"}, "TRITON_RANKS: must be a number from 1 to 99, is 'two'"),
        (
            {"TRITON_RANKS": "2", "TRITON_MODEL_REPOSITORY": "/nowhere"},
            "there is no /nowhere/tensorrt_llm/config.pbtxt",
        ),
    ],
)
def test_settings_that_make_no_sense_are_named(repository: Path, variables: dict[str, str], message: str) -> None:
    done = launch(repository, **variables)
    assert done.returncode != 0
    assert message in done.stderr


def test_a_configuration_with_placeholders_is_not_served(repository: Path) -> None:
    path = repository / "tensorrt_llm/config.pbtxt"
    path.write_text(
        path.read_text() + 'parameters: { key: "enable_chunked_context" value: { string_value: "${chunked}" } }\n'
    )
    done = launch(repository, TRITON_RANKS="1")
    assert done.returncode == 2
    assert "2:" in done.stderr
    assert "${chunked}" in done.stderr
    assert "has unfilled placeholders" in done.stderr

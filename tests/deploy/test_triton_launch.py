"""deploy/triton.sh as its container runs it.

What it starts: with stand-ins for mpirun and tritonserver that print their arguments. How it stops: with the real
mpirun, and a tritonserver that loads, answers and ends as the real one does.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from deploy.ports import find_free
from tests.deploy.shipped import DEPLOY, UNITS, Unit, need_tool
from tests.processes import comes_true, is_running

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
    assert command[:4] == ["mpirun", "--allow-run-as-root", "--bind-to", "none"]
    ranks = " ".join(command[4:]).split(" : ")
    assert [rank.split()[:2] for rank in ranks] == [["-n", "1"]] * 4
    assert all(f" tritonserver --model-repository={repository} " in rank for rank in ranks)
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
            {"TRITON_RANKS": "2", "TRITON_EXIT_TIMEOUT_S": "30s"},
            "TRITON_EXIT_TIMEOUT_S: must be whole seconds, is '30s'",
        ),
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


# ---- how it stops ----

KILL_S = 7  # triton.sh gives a leader that hangs 5 s, and mpirun needs 2 s to kill every rank
ONE_AND_TWO = pytest.mark.parametrize("ranks", [1, 2])


class Job:
    """triton.sh over stand-ins whose notes lie in `state`; it is to be stopped once."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, state: Path) -> None:
        self._process, self._port, self._state = process, port, state

    def wait_for_ranks(self, count: int) -> list[int]:
        """Their process ids."""
        paths = [self._state / f"rank{rank}" for rank in range(count)]
        self._wait_until(lambda: all(path.exists() and path.read_text() for path in paths))
        return [int(path.read_text()) for path in paths]

    def begin_answer(self, lines: int) -> "Answer":
        self._wait_until(self._answers)
        return Answer(f"http://127.0.0.1:{self._port}/{lines}")

    def stop(self) -> tuple[int, float]:
        """The exit code, and after how many seconds it came."""
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60), time.monotonic() - begun

    def _answers(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/0", timeout=5):
                return True
        except OSError:
            return False

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not holds():
            assert self._process.poll() is None, f"triton.sh ended with {self._process.returncode}"
            assert time.monotonic() < end
            time.sleep(0.05)


class Answer:
    """Under way: its first line has come."""

    def __init__(self, url: str) -> None:
        self._response = urlopen(url, timeout=30)
        assert self._response.readline() == b"0\n"

    def is_whole(self) -> bool:
        rest: bytes = self._response.read()
        self._response.close()
        return rest.endswith(b"end\n")


@contextmanager
def started(repository: Path, ranks: int, **variables: str) -> Iterator[Job]:
    server = repository.parent / "bin/tritonserver"
    server.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("triton_stand_in.py")} "$@"\n')
    (repository.parent / "bin/mpirun").unlink()
    state = repository.parent / "state"
    state.mkdir()
    [port] = find_free(1)
    environment = {
        "PATH": f"{repository.parent}/bin:{Path(need_tool('mpirun', 'openmpi-bin')).parent}:{os.defpath}",
        "TRITON_MODEL_REPOSITORY": str(repository),
        "TRITON_RANKS": str(ranks),
        "TRITON_HTTP_PORT": str(port),
        "STATE": str(state),
        # A machine of one core has one slot.
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        **variables,
    }
    process = subprocess.Popen([DEPLOY / "triton.sh"], env=environment)
    try:
        yield Job(process, port, state)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


def read_good_codes() -> set[int]:
    """The exit codes after which systemd calls the unit stopped and not failed."""
    return {0, int(Unit(UNITS / "crossover-triton.service")["Service"]["SuccessExitStatus"])}


@ONE_AND_TWO
def test_a_stop_gives_running_answers_their_time(repository: Path, ranks: int) -> None:
    with started(repository, ranks) as job:
        answer = job.begin_answer(lines=40)
        code, after_s = job.stop()
        assert answer.is_whole()
        assert code == 0
        assert 3 < after_s < 30  # of which the answer took four, less its beginning


def test_answers_that_take_longer_are_cut_and_no_rank_stays(repository: Path) -> None:
    with started(repository, 2, TRITON_EXIT_TIMEOUT_S="1") as job:
        answer = job.begin_answer(lines=400)
        pids = job.wait_for_ranks(2)
        code, after_s = job.stop()
        assert not answer.is_whole()
        assert code == 1
        assert 1 < after_s < 1 + KILL_S + 10
        assert comes_true(lambda: not any(map(is_running, pids)), 5.0)


@ONE_AND_TWO
def test_it_can_be_stopped_while_it_loads(repository: Path, ranks: int) -> None:
    with started(repository, ranks, LOAD_S="50") as job:
        pids = job.wait_for_ranks(ranks)
        code, after_s = job.stop()
        assert code == 143
        assert code in read_good_codes()
        assert after_s < KILL_S + 10
        assert comes_true(lambda: not any(map(is_running, pids)), 5.0)

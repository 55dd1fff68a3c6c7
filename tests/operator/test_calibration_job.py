"""A calibration's folder as a worker reads it, with the locks that its process would hold."""

from pathlib import Path

import pytest

from gateway.operator.calibrations.job import CANCELLED, LOCK, PROGRESS, Job, open_locked

MEASURING = b'{"event":"measuring"}\n'
COMPLETE = b'{"event":"end","status":"complete"}\n'


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / PROGRESS).write_bytes(MEASURING)
    return Job(tmp_path)


def kinds(job: Job) -> list[object]:
    return [event["event"] for event in job.read_events()]


def test_an_end_that_was_told_is_heard_when_the_process_is_gone_and_the_next_may_start(job: Job) -> None:
    (job.path / PROGRESS).write_bytes(MEASURING + COMPLETE)
    with open_locked(job.path / LOCK):
        assert kinds(job) == ["measuring"]
        assert kinds(job) == ["measuring"]
    assert kinds(job) == ["measuring", "end"]
    assert job.read_events()[-1]["status"] == "complete"


def test_a_process_that_lives_has_no_end(job: Job) -> None:
    with open_locked(job.path / LOCK):
        assert kinds(job) == ["measuring"]


def test_one_that_is_gone_without_a_word_has_failed_with_its_last_line(job: Job) -> None:
    (job.path / PROGRESS).write_bytes(MEASURING + b"Traceback:\nMemoryError\n")
    assert job.read_events()[-1] == {"event": "end", "status": "failed", "failure": "MemoryError"}


def test_one_that_was_cancelled_before_it_could_say_so_is_interrupted(job: Job) -> None:
    (job.path / CANCELLED).touch()
    assert job.read_events()[-1]["status"] == "interrupted"

"""Starts, finds and cancels calibrations, one at a time on a node. Any worker can do any of it.

In: options and the gateway's own URL. Out: Jobs. A process holds two locks while it lives, the node's and its job's; it
inherits both, so that no worker has to outlive it. Knows the load tester as a command only.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from gateway.errors import CalibrationNotFound, CalibrationRunning, CalibrationUnavailable
from gateway.operator.calibrations.job import LOCK, OUTPUT, PROGRESS, Job, open_locked
from gateway.operator.calibrations.shapes import CalibrationBody

NODE_LOCK = ".calibrating"
IDS = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")
COMMAND = (sys.executable, "-P", "-c", "from gateway.cli import main; main()", "calibrate")


class Calibrations:
    """The calibrations kept in `folder`, which is made when the first one starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._started: tuple[Job, subprocess.Popen[bytes]] | None = None  # the last one that this worker has started

    def start(self, body: CalibrationBody, url: str, by: str, key: str | None) -> Job:
        """Starts one, which calls the gateway with `key`.

        Raises CalibrationRunning if one runs on this node, CalibrationUnavailable if it cannot start.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open_locked(self._folder / NODE_LOCK) as node_lock:
                if node_lock is None:
                    raise CalibrationRunning("a calibration is running; end it first, or wait")
                if self._started is not None:
                    self._started[1].poll()  # reaps the process
                return self._launch(body, url, by, key, node_lock)
        except OSError as exc:
            raise CalibrationUnavailable(f"cannot start a calibration in {self._folder}: {exc.strerror}") from exc

    def list(self) -> list[Job]:
        """Returns all calibrations, the latest first."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        jobs = (Job(path) for path in paths if IDS.fullmatch(path.name))
        return sorted((job for job in jobs if job.is_ordered), key=lambda job: job.id, reverse=True)

    def find(self, job_id: str) -> Job:
        """Finds a calibration by its id, which is a name in the folder and no path. Raises CalibrationNotFound."""
        job = Job(self._folder / job_id)
        if not IDS.fullmatch(job_id) or not job.is_ordered:
            raise CalibrationNotFound(f"there is no calibration {job_id}")
        return job

    def cancel(self, job: Job) -> None:
        """Stops it as Ctrl-C would, so that it can be resumed. One that has ended stays as it is."""
        if job.is_running() and job.cancel_once():
            with suppress(ProcessLookupError):
                os.kill(int(str(job.read_order()["pid"])), signal.SIGTERM)

    def close(self) -> None:
        """Cancels the calibration that this worker has started, because the gateway ends."""
        if self._started is not None:
            self.cancel(self._started[0])

    def _launch(self, body: CalibrationBody, url: str, by: str, key: str | None, node_lock: int) -> Job:
        now = datetime.now(UTC)
        job = Job(self._folder / f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")
        job.path.mkdir()
        with open_locked(job.path / LOCK) as job_lock:
            assert job_lock is not None  # its folder is new
            process = self._spawn(job, body.arguments(url), (node_lock, job_lock), key)
        self._started = job, process
        options = body.model_dump(mode="json")
        job.write_order({"started_at": now.isoformat(), "by": by, "options": options, "pid": process.pid})
        return job

    def _spawn(
        self, job: Job, arguments: Sequence[str], locks: Sequence[int], key: str | None
    ) -> subprocess.Popen[bytes]:
        # -P and our own path: it imports what this process would. In a session of its own, Ctrl-C reaches it through
        # us alone. The key goes by the environment, which other users of the machine cannot read.
        ours = {"PYTHONPATH": os.pathsep.join(sys.path), "CROSSOVER_OPERATOR_KEY": key or ""}
        with (job.path / OUTPUT).open("wb") as output, (job.path / PROGRESS).open("wb") as progress:
            return subprocess.Popen(
                (*COMMAND, *arguments, "--out", str(job.path), "--progress", "json"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=progress,
                pass_fds=locks,
                start_new_session=True,
                env=os.environ | ours,  # noqa: TID251 - a launcher hands it on
            )

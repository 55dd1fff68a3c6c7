"""A `crossover demo` in a process of its own, as a user runs it."""

import re
import signal
import subprocess
import threading
import time
from pathlib import Path

from deploy.stacks import crossover_script


class Demo:
    """A running `crossover demo`, its output collected as it comes."""

    def __init__(self, *options: str, run_dir: Path) -> None:
        command = [crossover_script(), "demo", *options, "--run-dir", str(run_dir)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def has_shown(self, line: str) -> bool:
        return re.search(rf"(?m)^{line}$", self.output) is not None

    def wait_for(self, line: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.has_shown(line):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send a signal, wait for the end, return the exit status."""
        self.process.send_signal(number)
        status = self.process.wait(30)
        self._reader.join()
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stdout:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

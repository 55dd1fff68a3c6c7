"""What the demo says: what is ready, what was measured, how to send the first request."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Self

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from deploy.embedded import HELD, Pace
from deploy.stacks import MODEL, crossover_script

QUESTION = "What is the capital of France?"


class StartScreen:
    """A line for each process as it gets ready; on a terminal, what is still waited for below them, with a clock."""

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting = list(names)
        self._console = Console(highlight=False)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._clock = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._clock.add_task(self._describe())

    def __enter__(self) -> Self:
        self._clock.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._clock.stop()

    def report(self, name: str, seconds: float) -> None:
        self._console.print(f"  {name:<8} ready after {seconds:.1f} s")
        self._waiting.remove(name)
        if self._waiting:
            self._clock.update(self._task, description=self._describe())
        else:
            self._clock.stop()

    def _describe(self) -> str:
        return f"starting {', '.join(self._waiting)}"


def print_true_crossing(result: Mapping[str, Any], pace: Pace) -> None:  # Any: result.json, read key by key
    """The crossing of the curves that pace the engines, and how far off the measured one is."""
    line = f"pacing     the curves that pace these engines cross at {pace.crossing:.1f}"
    if measured := result["crossover"]["throughput"]["point"]:
        line += f"; measured {measured:.1f}, {measured / pace.crossing - 1:+.0%}"
    click.echo(line)
    share, cell = pace.least_held(result["cells"])
    if share < HELD:
        slowest = f"{cell['backend']} gave {share:.0%} of it at {cell['level']} in flight"
        click.echo(f"           this machine could not hold that pace: {slowest}, so what was measured is the machine")


def print_usage(url: str) -> None:
    """One curl line, one Python line, and how to look at the threshold and move it by hand."""
    body = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'
    python = (
        f"from openai import OpenAI; print(OpenAI(base_url='{url}/v1', api_key='-').chat.completions.create("
        f"model='{MODEL}', messages=[{{'role': 'user', 'content': '{QUESTION}'}}]).choices[0].message.content)"
    )
    crossover = os.path.relpath(crossover_script())
    click.echo(f"""
Ask it, with curl or with the official client (pip install openai):
  curl -i {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'
  python -c "{python}"
Look at the threshold, or move it:
  {crossover} policy show --url {url}
  {crossover} policy set --url {url} --up 8 --down 6
""")

"""The demo's output: which processes are ready, what was measured, how to send the first request."""

import os
from collections.abc import Mapping
from typing import Any

import click

from deploy.embedded import HELD, Pace
from deploy.stacks import MODEL, crossover_script

QUESTION = "What is the capital of France?"


def print_ready(name: str, seconds: float) -> None:
    click.echo(f"  {name:<8} ready after {seconds:.1f} s")


def print_crossing(result: Mapping[str, Any], pace: Pace) -> None:  # Any: result.json, read key by key
    """Prints the crossing of the models that pace the engines, and how far the measured one is from it."""
    crossing, measured = pace.crossing, result["crossover"]["throughput"]["point"]
    line = "pacing     the models that pace these engines "
    line += f"cross at {crossing:.1f}" if crossing else "do not cross"
    if measured:
        line += f"; measured {measured:.1f}" + (f", {measured / crossing - 1:+.0%}" if crossing else "")
    click.echo(line)
    share, cell = pace.least_held(result["cells"])
    if share < HELD:
        slowest = f"{cell['backend']} gave {share:.0%} of it at {cell['level']} in flight"
        click.echo(f"           this machine could not hold that pace: {slowest}, so it measured the machine")


def print_usage(url: str) -> None:
    """Prints one curl line, one Python line, and how to show the policy and change it."""
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
Look at the policy, or change it:
  {crossover} policy show --url {url}
  {crossover} policy set --url {url} --kind threshold --up 8 --down 6
""")

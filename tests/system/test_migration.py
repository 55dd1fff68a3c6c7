"""docs/migration.md followed to the letter: its policy commands in their order, and who answers after each."""

import asyncio
import re
import shlex
from collections import Counter
from pathlib import Path

import yaml
from click.testing import CliRunner

from gateway.cli import main
from gateway.configuration import parse_settings
from tests.system.site import Site

GUIDE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()
COMMANDS = re.findall(r"^    crossover (policy .*)$", GUIDE, re.MULTILINE)
REQUESTS = 40


async def run(site: Site, command: str) -> str:
    environment = {"CROSSOVER_URL": site.url}
    result = await asyncio.to_thread(CliRunner().invoke, main, shlex.split(command), env=environment)
    assert result.exit_code == 0, f"{command}: {result.output}"
    return result.output


async def ask(site: Site) -> Counter[str | None]:
    """Which backends answered so many requests one after the other in small groups."""
    backends: Counter[str | None] = Counter()
    for _ in range(REQUESTS // 8):
        answers = await asyncio.gather(*(site.ask(2) for _ in range(8)))
        assert all(answer.is_whole for answer in answers)
        backends.update(answer.backend for answer in answers)
    return backends


async def test_the_guides_commands_do_what_it_says(paced: Site) -> None:
    await run(paced, "policy set --kind share --share 0")  # as the file of step 2 has it
    show, *canary, back, by_hand, out, again = COMMANDS
    try:
        shown = await run(paced, show)
        assert "share low=triton high=vllm share=0.0" in shown
        assert "NO" not in shown
        assert await ask(paced) == {"vllm": REQUESTS}
        assert (await paced.ask(2, pin="triton")).backend == "triton"
        for command in canary:
            assert shlex.split(command)[-1] in await run(paced, command)
        # A quarter of them: none, or so many, once in 50,000 runs.
        assert 0 < (await ask(paced))["triton"] < 25
        await run(paced, back)
        assert await ask(paced) == {"vllm": REQUESTS}
        assert "up=56 down=44" in await run(paced, by_hand)
        assert await ask(paced) == {"triton": REQUESTS}  # the side of the share was vllm, and load is low
        await run(paced, out)
        assert await ask(paced) == {"vllm": REQUESTS}
    finally:
        await run(paced, again)
    assert await ask(paced) == {"triton": REQUESTS}


def test_the_guides_files_are_configurations(tmp_path: Path) -> None:
    first, second = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    alone = yaml.safe_load(first)
    alone["models"][0]["tokenizer"] = str(tmp_path)
    assert parse_settings(alone, environ={}).models[0].policy is None
    both = {**alone, "models": [alone["models"][0] | yaml.safe_load(second)]}
    assert list(parse_settings(both, environ={}).models[0].chosen_from) == ["triton", "vllm"]

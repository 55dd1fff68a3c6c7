"""What policies have learned of engines, over a restart: what goes on, and what is another engine's or no gateway's."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core import State
from gateway.routing import LearnedFile, PolicyChange, PolicyFile, first_policy
from gateway.routing.learned import NAME, Learned, keeping
from gateway.routing.policies import Curve, Threshold
from gateway.routing.policies.curve.learning import SPREAD
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from gateway.settings import ModelSettings
from tests.fakes.backend import described
from tests.routing.conftest import Node
from tests.routing.nodes import read_node

CURVE = Curve(low="triton", high="vllm", node=read_node())
LOW = EngineMemory(1.4, 0.8, 0.004, -0.001, 0.02, 0.3, 0.05, 12.0, 48.0, seen=900.0, beats=4.0, steps=11.0)
ENGINES: Mapping[str, Mapping[str, str | int]] = {"triton": {"engine": "triton", "version": "2.50"}}


def learn(state: State, **words: Any) -> State:  # Any: by name
    return replace(state, words=Memory(**{"low": LOW, "rate": 7.0, **words}).words())


def keep(policy: Curve = CURVE, **words: Any) -> dict[str, Any]:  # Any: by name, JSON
    """What a file holds of it."""
    kept: dict[str, Any] = orjson.loads(orjson.dumps(policy.find_kept(learn(policy.start(1, 0.0), **words))))
    return kept


def settings(policy: Curve | Threshold = CURVE) -> ModelSettings:
    return ModelSettings("llama", Path(), described(("triton", "vllm")), policy)


def begin(file: LearnedFile, policy: Curve | Threshold = CURVE) -> State:
    state, _ = first_policy(settings(policy), PolicyFile(None, [settings(policy)]), file, clock=lambda: 50.0)
    return state


def test_scales_go_on_less_sure_and_nothing_else_does() -> None:
    memory = Memory.read(CURVE.resume(CURVE.start(3, 50.0), keep()).words)
    assert (memory.low.spread_decode, memory.low.spread_prefill) == pytest.approx((0.014, 0.03))
    memory.low.spread_decode, memory.low.spread_prefill = LOW.spread_decode, LOW.spread_prefill
    assert memory == Memory(low=replace(LOW, seen=0.0, beats=-1.0, steps=0.0))
    assert CURVE.readings(learn(CURVE.start(1, 0.0))) == CURVE.readings(State("triton", 0.0, 3, memory.words()))


def test_nobody_becomes_less_sure_than_a_calibration_is() -> None:
    unsure = replace(LOW, spread_decode=SPREAD**2, spread_prefill=SPREAD**2 - 0.001)
    memory = Memory.read(CURVE.resume(CURVE.start(3, 50.0), keep(low=unsure)).words)
    assert (memory.low.spread_decode, memory.low.spread_prefill) == (SPREAD**2, SPREAD**2)


def test_where_nothing_was_learned_nothing_is_kept() -> None:
    assert CURVE.find_kept(CURVE.start(1, 0.0)) is None
    assert replace(CURVE, node=None).find_kept(State("triton", 0.0, 1)) is None
    plain = Threshold(low="triton", high="vllm", up=4, down=2)
    assert plain.find_kept(plain.start(1, 0.0)) is None


def test_who_does_not_learn_takes_nothing_over() -> None:
    deaf = replace(CURVE, learns=False)
    assert deaf.resume(deaf.start(1, 0.0), keep()) == deaf.start(1, 0.0)


OTHER = replace(CURVE, node=replace(read_node(), move_s=0.06))


@pytest.mark.parametrize(
    "kept",
    [
        {},
        keep(OTHER),
        {**keep(), "more": 1},
        {**keep(), "low": 3},
        {**keep(), "low": {"decode": 1.0}},
        *({**keep(), "low": {**keep()["low"], "decode": bad}} for bad in (0.0, 9.0, None, "fast")),
        *({**keep(), "low": {**keep()["low"], "spread_prefill": bad}} for bad in (-0.1, 1.0)),
        *({**keep(), "low": {**keep()["low"], **bad}} for bad in ({"windows": 1e9}, {"max_sequences": -1})),
    ],
)
def test_what_is_of_another_node_model_or_damaged_is_reported_and_ignored(
    kept: dict[str, Any],  # Any: JSON
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = LearnedFile(tmp_path)
    file.write({"llama": Learned("curve", kept, {})})
    assert begin(file) == CURVE.start(1, 50.0)
    (line,) = caplog.messages
    assert line.startswith(f"the policy of llama learns anew, because {tmp_path / NAME} is of no use: ")
    assert "\n" not in line


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"llama": 3}',
        b'{"llama": {}}',
        b'{"llama": {"kind": "curve", "kept": [], "engines": {}}}',
        b'{"llama": {"kind": "curve", "kept": {}, "engines": {"vllm": 3}}}',
        b'{"llama": {"kind": "threshold", "kept": {}, "engines": {}}}',
    ],
)
def test_a_file_that_is_none_is_reported_and_replaced(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert begin(LearnedFile(tmp_path)) == CURVE.start(1, 50.0)
    assert "is of no use" in caplog.messages[-1]
    LearnedFile(tmp_path).write({"llama": Learned("curve", keep(), ENGINES)})
    assert Memory.read(begin(LearnedFile(tmp_path)).words).low.decode == 1.4


def test_a_file_has_every_models_own_and_goes_with_the_last(tmp_path: Path) -> None:
    one, other = Learned("curve", keep(), ENGINES), Learned("curve", {"words": [1.5]}, {})
    LearnedFile(tmp_path / "state").write({"llama": one, "idle": None})
    LearnedFile(tmp_path / "state").write({"qwen": other})
    file = LearnedFile(tmp_path / "state")
    assert [file.read(model, "curve") for model in ("llama", "qwen", "idle")] == [one, other, None]
    file.write({"llama": None, "qwen": None})
    assert list((tmp_path / "state").iterdir()) == []


def test_without_a_folder_nothing_is_kept_and_one_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learned = {"llama": Learned("curve", keep(), ENGINES)}
    LearnedFile(None).write(learned)
    assert LearnedFile(None).read("llama", "curve") is None
    (tmp_path / "file").write_text("no folder")
    file = LearnedFile(tmp_path / "file")
    for _ in range(3):
        file.write(learned)
    assert [line.startswith("what policies have learned ends with this gateway") for line in caplog.messages] == [True]


async def test_it_is_written_at_the_end_if_it_has_changed(tmp_path: Path) -> None:
    file, learned = LearnedFile(tmp_path), Learned("curve", keep(), ENGINES)
    async with keeping(file, lambda: {"llama": learned}):
        await asyncio.sleep(0)
        assert not (tmp_path / NAME).exists()
    assert file.read("llama", "curve") == learned
    (tmp_path / NAME).unlink()
    async with keeping(file, lambda: {"llama": learned}):
        pass
    assert not (tmp_path / NAME).exists()


# ---- other engines ---------------------------------------------------------------------------------------------------


@pytest.fixture
def learned_node(tmp_path: Path) -> Node:
    """A worker whose policy goes on with what it had learned of ENGINES."""
    file = LearnedFile(tmp_path)
    file.write({"llama": Learned("curve", keep(), ENGINES)})
    node = Node(CURVE)
    node.fleet._ledger.replace(lambda state, text: (CURVE.resume(state, keep()), text))
    node.fleet.remember(file)
    return node


def find_readings(node: Node) -> Mapping[str, float]:
    return node.router.model_state().backends["triton"].readings


@pytest.mark.parametrize("engine", [{}, ENGINES["triton"], {"version": "2.50", "batch": 64}])
def test_what_was_learned_of_an_engine_holds_while_it_is_the_same(
    learned_node: Node, engine: Mapping[str, str | int], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        learned_node.router.identify("llama", "triton", engine)
    learned_node.router.identify("llama", "vllm", {"engine": "vllm", "version": "0.32"})
    assert find_readings(learned_node)["decode_scale"] == 1.4
    assert caplog.messages == []
    learned = learned_node.fleet.find_learned()
    assert learned is not None
    assert learned.engines["triton"] == {**ENGINES["triton"], **engine}


def test_what_was_learned_of_an_engine_goes_with_it(learned_node: Node, caplog: pytest.LogCaptureFixture) -> None:
    for version in ("2.51", "2.51", "2.50"):
        learned_node.router.identify("llama", "triton", {"version": version})
    assert find_readings(learned_node) == {}
    assert learned_node.fleet.find_learned() is None
    assert caplog.messages == ["the policy of llama learns anew: triton version was 2.50, is 2.51"]
    assert learned_node.router.model_state().current.version == 1


def test_a_policy_that_is_set_learns_anew(learned_node: Node) -> None:
    learned_node.router.set_policy(PolicyChange(OTHER, by="test"))
    assert learned_node.fleet.find_learned() is None

"""Engines on their real wires with a green health page that answer nonsense, errors, parts, or nothing at all."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
from openai import APIError, AsyncOpenAI

from gateway.app import compose
from gateway.backends.triton import TritonBackend
from gateway.backends.vllm import VLLMBackend
from gateway.core import TokenBackend
from gateway.language import ModelLanguage
from gateway.routing.policies import Threshold
from gateway.serving import RelayLane, TokenLane
from gateway.settings import ModelSettings, ProbeSettings, Settings, TritonSettings, VLLMSettings
from tests.fakes.alone import make_fleet
from tests.fakes.script import Asked, EndToken, FakeEngine, Fault, Full, Hush, Say, Stall, Step
from tests.fakes.triton import FakeTriton
from tests.fakes.vllm import FakeVLLM
from tests.serving.stack import HELLO, MODEL, TOKENIZER, ServedApp, Writer, connect, serving

TEXT = "Paris is the capital of France."
Ids: TypeAlias = Sequence[int]

# What a sick engine sends in place of the ids of TEXT.
SICK: dict[str, Callable[[Ids], Sequence[Step]]] = {
    "an error": lambda _: [Fault("broken")],
    "an error after a token": lambda ids: [Say(tuple(ids[:1])), Fault("broken")],
    "a negative id": lambda _: [Say((-3,)), Full()],
    "an id beyond the vocabulary": lambda _: [Say((10**6,)), Full()],
    "no tokens": lambda _: [Hush()],
    "no finish": lambda ids: [Say(tuple(ids[:1])), Hush()],
    "nothing at all": lambda _: [Stall()],
    "nothing after a token": lambda ids: [Say(tuple(ids[:1])), Stall()],
    "half of an answer": lambda ids: [Say(tuple(ids[:2])), Full()],
}


@asynccontextmanager
async def pair(language: ModelLanguage, first: str) -> AsyncIterator[tuple[ServedApp, FakeTriton, FakeVLLM]]:
    """A gateway whose requests go to `first`, and to the other one if they have to."""
    other = "vllm" if first == "triton" else "triton"
    async with FakeTriton().serving() as triton, FakeVLLM().serving() as vllm:
        at_triton = TritonSettings("triton", f"grpc://127.0.0.1:{triton.port}")
        at_vllm = VLLMSettings("vllm", f"http://127.0.0.1:{vllm.port}")
        backends: dict[str, TokenBackend] = {
            "triton": TritonBackend(at_triton, vocab_size=language.vocab_size),
            "vllm": VLLMBackend(at_vllm, vocab_size=language.vocab_size),
        }
        policy = Threshold(low=first, high=other, up=1000, down=999, dwell_s=0)
        model = ModelSettings(
            id=MODEL, tokenizer=TOKENIZER, backends={"triton": at_triton, "vllm": at_vllm}, policy=policy
        )
        fleet = make_fleet(model, backends, ProbeSettings(interval_s=0.1, down_interval_s=0.05))
        app = compose(Settings((model,), "127.0.0.1:0"), {MODEL: TokenLane(language, backends, RelayLane({}))}, [fleet])
        try:
            async with app.router.watching(), app.endpoints.mover.running(), serving(app) as server:
                yield ServedApp(app=app, port=server.port), triton, vllm
        finally:
            for backend in backends.values():
                await backend.aclose()


def be_well(engine: FakeEngine, ids: Ids) -> None:
    """Each answer is TEXT, or what is missing of it where a prompt ends with its beginning; a trial's is one token."""

    def answer(asked: Asked) -> Sequence[Step]:
        if len(asked.prompt) == 1:
            return [Say((ids[0],)), Full()]
        done = next(n for n in reversed(range(len(ids))) if asked.prompt[len(asked.prompt) - n :] == tuple(ids[:n]))
        return [*(Say((token,)) for token in ids[done:]), EndToken()]

    engine.script = answer


async def ask(client: AsyncOpenAI, times: int) -> int:
    """Asks in turns of ten. Returns how many clients did not get TEXT."""

    async def ask_once() -> bool:
        try:
            stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, temperature=0)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        except APIError:
            return False
        return text == TEXT

    answered: list[bool] = []
    for _ in range(times // 10):
        answered += await asyncio.gather(*(ask_once() for _ in range(10)))
    return answered.count(False)


def is_ejected(site: ServedApp, name: str) -> bool:
    return site.app.router.model_state(MODEL).backends[name].is_ejected


# Triton returns no end token: an answer of which the second half is missing looks like one that has ended.
CASES = [
    (sick, kind) for sick in ("triton", "vllm") for kind in SICK if (sick, kind) != ("triton", "half of an answer")
]


@pytest.mark.parametrize(("sick", "kind"), CASES)
async def test_a_sick_engine_costs_no_answer_and_is_used_again_when_it_is_well(
    language: ModelLanguage, writer: Writer, sick: str, kind: str
) -> None:
    ids = writer.ids(TEXT)
    async with pair(language, sick) as (site, triton, vllm), connect(site) as client:
        engine: FakeEngine = triton if sick == "triton" else vllm
        be_well(triton, ids)
        be_well(vllm, ids)
        assert await ask(client, 50) == 0
        engine.script = lambda _: SICK[kind](ids)
        before = len(engine.asked)
        assert await ask(client, 200) == 0
        assert is_ejected(site, sick)
        assert len(engine.asked) - before < 60
        be_well(engine, ids)
        recovered = time.monotonic()
        while is_ejected(site, sick):
            assert await ask(client, 10) == 0
            assert time.monotonic() - recovered < 20
        before = len(engine.asked)
        assert await ask(client, 50) == 0
        assert len(engine.asked) - before == 50

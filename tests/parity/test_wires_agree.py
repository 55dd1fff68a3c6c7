"""Messages and Responses through either engine, whole and streamed, and by vLLM's own server: the same answers.

Behind the gateway: a real Triton beside a real vLLM with the same weights; its own server answers the same bodies.
"""

import asyncio

import aiohttp
import orjson
import pytest

from deploy.launch import Launched
from deploy.stacks import WEIGHTS
from gateway.anthropic.messages import MessagesRequest
from gateway.language import ModelLanguage
from gateway.openai.responses import ResponsesRequest
from gateway.wire.body import Body, Envelope, parse_body
from gateway.wire.translate import translate
from tests.fuzz.exchange import Received, Sent, check
from tests.parity.wires import MESSAGES, RESPONSES, Ask, Gist, list_asks, read_gist
from tests.workers import ON_CPU_STACK

ASKS = list_asks()
BY_NAME = {ask.name: ask for ask in ASKS}
BODIES: dict[str, type[Body]] = {MESSAGES: MessagesRequest, RESPONSES: ResponsesRequest}
PATHS = pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
# Where vLLM 0.32's own server does otherwise, and why.
LISTED = {
    "tools that may not be called": "the model is shown none of them here; vLLM shows them",
    "some call": "vLLM asks its guidance library for a form that this library does not know, and answers 400",
    "a named call": "as above",
    "a call that is cut off": "begun here as in a stream; vLLM shows its text",
    "more than there is room for": "fitted here to what is left; vLLM refuses it",
}


@pytest.fixture(scope="module")
def language() -> ModelLanguage:
    return ModelLanguage.load(WEIGHTS)


def test_there_are_sixty_of_each_wire() -> None:
    assert len(BY_NAME) == len(ASKS) >= 60
    assert set(LISTED) <= set(BY_NAME)


async def post(session: aiohttp.ClientSession, url: str, path: str, body: bytes, pin: str | None) -> bytes:
    headers = {"content-type": "application/json"} | ({} if pin is None else {"x-crossover-pin": pin})
    async with session.post(url + path, data=body, headers=headers) as response:
        raw = await response.read()
        assert response.status == 200, raw
        if pin is not None:
            fields = {name.lower(): value for name, value in response.headers.items()}
            check(Sent("POST", path, body), Received(response.status, fields, raw))
            assert response.headers["x-crossover-backend"] == pin
        return raw


async def ask_gateway(session: aiohttp.ClientSession, url: str, ask: Ask, path: str, pin: str, *, stream: bool) -> Gist:
    raw = await post(session, url, path, orjson.dumps({**ask.body(path), "stream": stream}), pin)
    return read_gist(path, raw, stream=stream)


@PATHS
@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("stack", [pytest.param("cpu", marks=ON_CPU_STACK)], indirect=True)
async def test_a_wire_has_one_answer_through_either_engine_and_by_vllms_server(
    stack: Launched, session: aiohttp.ClientSession, language: ModelLanguage, name: str, path: str
) -> None:
    ask, server = BY_NAME[name], str(stack.stack.backends["vllm"]["url"])
    first, *others = await asyncio.gather(
        *(
            ask_gateway(session, stack.url, ask, path, pin, stream=stream)
            for pin in ("triton", "vllm")
            for stream in (False, True)
        )
    )
    assert others == [first] * 3
    if ask.is_forced:
        assert len(first.calls) == 1
    if name in LISTED:
        return
    body = orjson.dumps(ask.body(path))
    assert read_gist(path, await post(session, server, path, body, None), stream=False) == first
    rendered = orjson.loads(await post(session, server, f"{path}/render", body, None))
    prompt = translate(parse_body(BODIES[path], ask.body(path)), language, Envelope("r", 1)).request.prompt
    assert list(prompt.token_ids) == rendered["token_ids"]
    assert len(prompt) == first.prompt_tokens

"""What the command makes of endpoints that are busy, refuse, misroute or tell less than they were asked for."""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

import httpx
import pytest

from engines.accuracy.comparison import Comparison, compare_all
from engines.accuracy.endpoint import Address, Endpoint
from engines.accuracy.errors import CannotMeasure
from engines.accuracy.items import Choice, FreeText, Item
from engines.accuracy.wire import Abilities

Json: TypeAlias = dict[str, Any]  # JSON objects
Reply: TypeAlias = tuple[int, Json, Mapping[str, str]]
ASK = FreeText(("Paris",), 8)


@dataclass
class Script:
    """What a server answers to each body, and what it was asked."""

    reply: Callable[[Json], Reply]
    url: str = ""
    asked: list[tuple[Mapping[str, str], Json]] = field(default_factory=list)


@contextmanager
def serving(reply: Callable[[Json], Reply]) -> Iterator[Script]:
    script = Script(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(200, {"data": [{"id": "first"}, {"id": "second"}]}, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.asked.append((dict(self.headers), body))
            self.send(*script.reply(body))

        def send(self, status: int, page: Json, headers: Mapping[str, str]) -> None:
            content = json.dumps(page).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()


def text(words: str = " Paris", **more: object) -> Reply:
    choice = {"text": words, "finish_reason": "stop", **more}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 1}}, {}


def refuse(message: str, status: int = 400) -> Reply:
    return status, {"error": {"message": message, "type": "x"}}, {}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


def endpoint(client: httpx.AsyncClient, url: str, **place: str) -> Endpoint:
    return Endpoint(client, Address("A", url, **place), "run-1", 5)


async def test_the_first_model_is_asked_where_none_is_named(client: httpx.AsyncClient) -> None:
    with serving(lambda body: text()) as server:
        one = endpoint(client, server.url)
        await one.probe()
        assert one.model == "first"
        assert {body["model"] for _, body in server.asked} == {"first"}


async def test_an_endpoint_that_drops_what_it_does_not_know_tells_text_alone(client: httpx.AsyncClient) -> None:
    with serving(lambda body: text()) as server:
        one = endpoint(client, server.url)
        await one.probe()
        assert one.abilities == Abilities()
        await one.generate("The capital is", ASK)
        assert set(server.asked[-1][1]) == {"model", "prompt", "max_tokens", "temperature"}


async def test_an_endpoint_is_asked_less_until_it_takes_it(client: httpx.AsyncClient) -> None:
    def reply(body: Json) -> Reply:
        if "return_tokens_as_token_ids" in body:
            return refuse("no names")
        if "echo" in body:
            return refuse("no echo here")
        return text(token_ids=[7]) if "return_token_ids" in body else text()

    with serving(reply) as server:
        one = endpoint(client, server.url)
        await one.probe()
        assert (one.abilities.scores, one.abilities.ids) == (False, True)
        assert "no echo here" in one.abilities.refusal


async def test_a_busy_endpoint_is_asked_again(client: httpx.AsyncClient) -> None:
    with serving(lambda body: text()) as server:
        server.reply = lambda body: refuse("later", 503) if len(server.asked) == 1 else text(" Rome")
        assert (await endpoint(client, server.url, model="m").generate("?", ASK)).text == " Rome"
        assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("headers", "words"),
    [({"x-crossover-backend": "vllm"}, "pinned to triton, but vllm answered"), ({}, "this is no Crossover gateway")],
)
async def test_an_answer_of_another_backend_is_no_measurement(
    client: httpx.AsyncClient, headers: Mapping[str, str], words: str
) -> None:
    with serving(lambda body: (*text()[:2], headers)) as server:
        with pytest.raises(CannotMeasure, match=words):
            await endpoint(client, server.url, model="m", pin="triton").generate("?", ASK)
        assert server.asked[0][0]["x-crossover-pin"] == "triton"


async def test_requests_are_tagged_as_a_run_and_carry_the_endpoint_s_own_key(client: httpx.AsyncClient) -> None:
    with serving(lambda body: text()) as server:
        await endpoint(client, server.url, model="m", key="secret").generate("?", ASK)
        await endpoint(client, server.url, model="m").generate("?", ASK)
        (first, _), (second, _) = server.asked
        assert (first["x-crossover-run"], first["authorization"]) == ("run-1", "Bearer secret")
        assert "authorization" not in second


async def test_nobody_there_is_told_after_some_tries(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.accuracy.endpoint.PAUSE_S", 0.01)
    with serving(lambda body: text()) as server:
        url = server.url
    with pytest.raises(CannotMeasure, match=url):
        await endpoint(client, url, model="m").generate("?", ASK)


async def test_an_item_that_fails_ends_the_run_by_its_name(client: httpx.AsyncClient) -> None:
    """No score is made up for it."""

    def reply(body: Json) -> Reply:
        return refuse("The prompt is too long") if body["prompt"] == "long" else text()

    items = [Item("line 1", "t", "short", ASK), Item("line 2", "t", "long", ASK), Item("line 3", "t", "short", ASK)]
    done: list[Comparison] = []
    with serving(reply) as server:
        one = endpoint(client, server.url, model="m")
        with pytest.raises(CannotMeasure, match=r"line 2: A .*too long"):
            await compare_all(items, one, one, 1, done.append)
    assert [found.item for found in done] == ["line 1"]


async def test_items_come_back_in_their_order_whoever_is_done_first(client: httpx.AsyncClient) -> None:
    """Also if several have one name."""
    items = [Item("same", f"task {number}", "?" * (number + 1), ASK) for number in range(9)]
    with serving(lambda body: text(" Paris" if len(body["prompt"]) % 2 else " Rome")) as server:
        one = endpoint(client, server.url, model="m")
        found = await compare_all(items, one, one, 4, lambda _: None)
    assert [each.task for each in found] == [item.task for item in items]
    assert [each.a.is_right for each in found] == [True, False] * 4 + [True]


async def test_choices_are_compared_by_what_their_tokens_sum_to(client: httpx.AsyncClient) -> None:
    """Of the continuation alone: the prompt's own tokens, and the one that is generated, do not count."""
    logprobs = {" Paris": [None, -9.0, -0.5, -0.25, -7.0], " Rome": [None, -0.1, -0.5, -0.5, -0.1]}

    def reply(body: Json) -> Reply:
        tokens = (
            ["The", " city", " Pa", "ris", "x"]
            if body["prompt"].endswith(" Paris")
            else ["The", " city", " Ro", "me", "x"]
        )
        scores = logprobs[body["prompt"].removeprefix("The city")]
        return text(logprobs={"tokens": tokens, "token_logprobs": scores, "top_logprobs": [{}] * 5})

    with serving(reply) as server:
        one = endpoint(client, server.url, model="m")
        (found,) = await compare_all(
            [Item("i", "t", "The city", Choice((" Rome", " Paris"), 0))], one, one, 1, lambda _: None
        )
    assert (found.a.answer, found.a.is_right) == (" Paris", False)
    assert found.a.surprisal is not None
    assert (found.a.surprisal.nats, found.a.surprisal.tokens) == pytest.approx((1.0, 2))

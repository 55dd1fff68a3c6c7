"""Endpoints that are busy, refuse, misroute or return less than they were asked for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import httpx
import pytest

from deploy.ports import find_free
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
    """An endpoint in place of httpx's transport: what it answers to each body, and what it was asked."""

    reply: Callable[[Json], Reply]
    asked: list[tuple[Mapping[str, str], Json]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "first"}, {"id": "second"}]})
        body = json.loads(request.content)
        self.asked.append((request.headers, body))
        status, page, headers = self.reply(body)
        return httpx.Response(status, json=page, headers=headers)

    def endpoint(self, **place: str) -> Endpoint:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return Endpoint(client, Address("A", "http://endpoint", **place), "run-1", 5)


def text(words: str = " Paris", **more: object) -> Reply:
    choice = {"text": words, "finish_reason": "stop", **more}
    return 200, {"choices": [choice], "usage": {"completion_tokens": 1}}, {}


def refuse(message: str, status: int = 400) -> Reply:
    return status, {"error": {"message": message, "type": "x"}}, {}


async def test_the_first_model_is_asked_where_none_is_named() -> None:
    server = Script(lambda body: text())
    one = server.endpoint()
    await one.probe()
    assert one.model == "first"
    assert {body["model"] for _, body in server.asked} == {"first"}


async def test_an_endpoint_that_drops_what_it_does_not_know_returns_text_alone() -> None:
    server = Script(lambda body: text())
    one = server.endpoint()
    await one.probe()
    assert one.abilities == Abilities()
    await one.generate("The capital is", ASK)
    assert set(server.asked[-1][1]) == {"model", "prompt", "max_tokens", "temperature"}


async def test_an_endpoint_is_asked_less_until_it_takes_it() -> None:
    def reply(body: Json) -> Reply:
        if "return_tokens_as_token_ids" in body:
            return refuse("no names")
        if "echo" in body:
            return refuse("no echo here")
        return text(token_ids=[7]) if "return_token_ids" in body else text()

    server = Script(reply)
    one = server.endpoint()
    await one.probe()
    assert (one.abilities.scores, one.abilities.ids) == (False, True)
    assert "no echo here" in one.abilities.refusal


async def test_a_busy_endpoint_is_asked_again() -> None:
    server = Script(lambda body: text())
    server.reply = lambda body: refuse("later", 503) if len(server.asked) == 1 else text(" Rome")
    assert (await server.endpoint(model="m").generate("?", ASK)).text == " Rome"
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("headers", "words"),
    [({"x-crossover-backend": "vllm"}, "pinned to triton, but vllm answered"), ({}, "this is no Crossover gateway")],
)
async def test_an_answer_of_another_backend_is_no_measurement(headers: Mapping[str, str], words: str) -> None:
    server = Script(lambda body: (*text()[:2], headers))
    with pytest.raises(CannotMeasure, match=words):
        await server.endpoint(model="m", pin="triton").generate("?", ASK)
    assert server.asked[0][0]["x-crossover-pin"] == "triton"


async def test_requests_are_tagged_as_a_run_and_carry_the_endpoint_s_own_key() -> None:
    server = Script(lambda body: text())
    await server.endpoint(model="m", key="secret").generate("?", ASK)
    await server.endpoint(model="m").generate("?", ASK)
    (first, _), (second, _) = server.asked
    assert (first["x-crossover-run"], first["authorization"]) == ("run-1", "Bearer secret")
    assert "authorization" not in second


async def test_an_endpoint_that_is_not_there_ends_the_run_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.accuracy.endpoint.PAUSE_S", 0.01)
    async with httpx.AsyncClient(trust_env=False) as client:
        url = f"http://127.0.0.1:{find_free(1)[0]}"
        with pytest.raises(CannotMeasure, match=url):
            await Endpoint(client, Address("A", url, "m"), "run-1", 5).generate("?", ASK)


async def test_an_item_that_fails_ends_the_run_by_its_name() -> None:
    """No score is made up for it."""

    def reply(body: Json) -> Reply:
        return refuse("The prompt is too long") if body["prompt"] == "long" else text()

    items = [Item("line 1", "t", "short", ASK), Item("line 2", "t", "long", ASK), Item("line 3", "t", "short", ASK)]
    done: list[Comparison] = []
    server = Script(reply)
    one = server.endpoint(model="m")
    with pytest.raises(CannotMeasure, match=r"line 2: A .*too long"):
        await compare_all(items, one, one, 1, done.append)
    assert [found.item for found in done] == ["line 1"]


async def test_items_come_back_in_their_order_whoever_is_done_first() -> None:
    """Also if several have one name."""
    items = [Item("same", f"task {number}", "?" * (number + 1), ASK) for number in range(9)]
    server = Script(lambda body: text(" Paris" if len(body["prompt"]) % 2 else " Rome"))
    one = server.endpoint(model="m")
    found = await compare_all(items, one, one, 4, lambda _: None)
    assert [each.task for each in found] == [item.task for item in items]
    assert [each.a.is_right for each in found] == [True, False] * 4 + [True]


async def test_choices_are_compared_by_what_their_tokens_sum_to() -> None:
    """Of the continuation alone: the prompt's own tokens, and the one that is generated, do not count."""
    logprobs = {" Paris": [None, -9.0, -0.5, -0.25, -7.0], " Rome": [None, -0.1, -0.5, -0.5, -0.1]}

    def reply(body: Json) -> Reply:
        city = body["prompt"].removeprefix("The city")
        tokens, scores = ["The", " city", city[:3], city[3:], "x"], logprobs[city]
        return text(logprobs={"tokens": tokens, "token_logprobs": scores, "top_logprobs": [{}] * 5})

    server = Script(reply)
    one = server.endpoint(model="m")
    (found,) = await compare_all(
        [Item("i", "t", "The city", Choice((" Rome", " Paris"), 0))], one, one, 1, lambda _: None
    )
    assert (found.a.answer, found.a.is_right) == (" Paris", False)
    assert found.a.surprisal is not None
    assert (found.a.surprisal.nats, found.a.surprisal.tokens) == pytest.approx((1.0, 2))

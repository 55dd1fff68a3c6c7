"""Responses that are kept: what later requests find of them, for how long, and who may not."""

import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from gateway.errors import InternalError, ResponseNotFound
from gateway.language import ModelLanguage
from gateway.serving.kept_responses import KeptResponses
from gateway.settings import ResponseSettings
from gateway.wire.keeper import Kept
from tests.serving.stack import MODEL, Stack, Writer, connect, make_stack, raw_client, running

USER = {"type": "message", "role": "user"}


@pytest.fixture(params=["memory", "file"])
async def kept(request: pytest.FixtureRequest, language: ModelLanguage, tmp_path: Path) -> AsyncIterator[Stack]:
    settings = ResponseSettings(keep=request.param)
    async with running(make_stack(language, responses=settings, state_folder=tmp_path)) as stack:
        yield stack


def prompt_of(stack: Stack, language: ModelLanguage, call: int = -1) -> str:
    return language.decode(stack.low.calls[call].request.prompt.token_ids, shows_special=True)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_conversation_goes_on_from_a_kept_response(
    kept: Stack, writer: Writer, language: ModelLanguage, stream: bool
) -> None:
    async with connect(kept, "-") as client:
        kept.low.script = writer.script("Paris")
        first: Any
        if stream:
            async with client.responses.stream(model=MODEL, input="France?", instructions="Be brief.") as events:
                first = await events.get_final_response()
        else:
            first = await client.responses.create(model=MODEL, input="France?", instructions="Be brief.")
        assert first.store is True
        second = await client.responses.create(model=MODEL, input="Chile?", previous_response_id=first.id)
        third = await client.responses.create(model=MODEL, input="Peru?", previous_response_id=second.id)
        assert third.previous_response_id == second.id
        said = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
        whole = "".join(said.format(f"{country}?") + "Paris<|im_end|>\n" for country in ("France", "Chile"))
        assert prompt_of(kept, language) == whole + said.format("Peru?")  # instructions are one request's own
        assert await client.responses.retrieve(second.id) == second
        items = await client.responses.input_items.list(third.id, order="asc", limit=3)
        assert [item.type for item in items.data] == ["message"] * 3
        assert items.has_more
        rest = await client.responses.input_items.list(third.id, order="asc", after=items.data[-1].id or "")
        assert [item.to_dict()["content"] for item in rest.data[-1:]] == [[{"type": "input_text", "text": "Peru?"}]]
        await client.responses.delete(second.id)
        with pytest.raises(NotFoundError) as caught:
            await client.responses.retrieve(second.id)
        assert caught.value.code == "response_not_found"
        with pytest.raises(NotFoundError, match=r"Response with id .* not found\."):
            await client.responses.create(model=MODEL, input="x", previous_response_id=second.id)
        with pytest.raises(BadRequestError, match=r"Cannot cancel a synchronous response\."):
            await client.responses.cancel(third.id)


async def test_what_is_not_to_be_kept_is_not(kept: Stack, writer: Writer) -> None:
    kept.low.script = writer.script("Paris")
    async with connect(kept, "-") as client:
        answer = await client.responses.create(model=MODEL, input="France?", store=False)
        assert (answer.model_extra or {})["store"] is False
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(answer.id)


async def test_no_id_leads_to_another(kept: Stack, writer: Writer) -> None:
    kept.low.script = writer.script("Paris")
    async with connect(kept, "-") as client:
        one, other = [await client.responses.create(model=MODEL, input="France?") for _ in range(2)]
    differing = [place for place, pair in enumerate(zip(one.id, other.id, strict=True)) if pair[0] != pair[1]]
    assert len(differing) > 16


async def test_without_a_store_there_is_a_clear_refusal(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    answer = await client.responses.create(model=MODEL, input="France?", store=True)
    assert (answer.model_extra or {})["store"] is False
    for ask in (
        client.responses.retrieve(answer.id),
        client.responses.delete(answer.id),
        client.responses.create(model=MODEL, input="x", previous_response_id=answer.id),
    ):
        with pytest.raises(BadRequestError, match=r"responses\.keep"):
            await ask


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "order=up", "after=msg_1"])
async def test_a_bad_page_is_named(kept: Stack, writer: Writer, query: str) -> None:
    kept.low.script = writer.script("Paris")
    async with connect(kept, "-") as client:
        answer = await client.responses.create(model=MODEL, input="France?")
    async with raw_client(kept) as raw:
        raw.send("GET", f"/v1/responses/{answer.id}/input_items?{query}")
        refused = await raw.answer()
    assert refused.status == 400
    assert orjson.loads(refused.body)["error"]["param"] == query.partition("=")[0]


@pytest.mark.parametrize(
    ("method", "part"),
    [("GET", "cancel"), ("POST", "input_items"), ("DELETE", "input_items"), ("GET", "input_items/x")],
)
async def test_there_is_nothing_else_about_a_response(kept: Stack, writer: Writer, method: str, part: str) -> None:
    kept.low.script = writer.script("Paris")
    async with connect(kept, "-") as client:
        answer = await client.responses.create(model=MODEL, input="France?")
    async with raw_client(kept) as raw:
        raw.send(method, f"/v1/responses/{answer.id}/{part}")
        refused = await raw.answer()
    assert (refused.status, orjson.loads(refused.body)["error"]["code"]) == (404, "unknown_url")


ONE = Kept(b"{}", b"[]")


def test_the_oldest_are_forgotten_first(tmp_path: Path) -> None:
    now = [1000.0]
    settings = ResponseSettings(keep="file", max_responses=2, max_bytes=2048, max_age_s=60.0)
    store = KeptResponses(settings, tmp_path, lambda: now[0])
    for name in ("a", "b", "c"):
        store.keep(name, ONE)
        now[0] += 1
    with pytest.raises(ResponseNotFound):
        store.find("a")
    assert (store.find("b"), store.find("c")) == (ONE, ONE)
    store.keep("large", Kept(b"x" * 2047, b"[]"))  # it alone is more than there is room for
    with pytest.raises(ResponseNotFound):
        store.find("c")
    assert store.find("large").items == b"[]"
    now[0] += 61
    with pytest.raises(ResponseNotFound):
        store.find("large")
    store.close()


def test_a_file_outlives_the_gateway_and_is_shared(tmp_path: Path) -> None:
    one, other = (KeptResponses(ResponseSettings(keep="file"), tmp_path) for _ in range(2))
    one.keep("a", ONE)
    assert other.find("a") == ONE
    other.drop("a")
    with pytest.raises(ResponseNotFound):
        one.find("a")
    one.keep("b", ONE)
    one.close()
    other.close()
    assert KeptResponses(ResponseSettings(keep="file"), tmp_path).find("b") == ONE


def test_a_file_that_another_holds_for_too_long_is_an_error_of_the_gateway(tmp_path: Path) -> None:
    kept, other = KeptResponses(ResponseSettings(keep="file"), tmp_path), sqlite3.connect(tmp_path / "responses.sqlite")
    kept.keep("a", ONE)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(InternalError):
        kept.drop("a")
    other.close()
    kept.drop("a")
    kept.close()


def write_other_tables(path: Path) -> None:
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE responses (name TEXT)")
    base.close()


def cut_in_half(path: Path) -> None:
    kept = KeptResponses(ResponseSettings(keep="file"), path.parent)
    for number in range(200):
        kept.keep(f"resp_{number}", Kept(b"{}" * 500, b"[]"))
    kept.close()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no base": lambda path: path.write_bytes(b"not a database" * 500),
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "cut off": cut_in_half,
    "other tables": write_other_tables,
}


@pytest.mark.timeout(20)  # a pipe would be waited for
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_cannot_be_read_is_set_aside_and_a_new_one_begins(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    DAMAGE[kind](tmp_path / "responses.sqlite")
    first, second = (KeptResponses(ResponseSettings(keep="file"), tmp_path) for _ in range(2))
    first.keep("resp_1", Kept(b"{}", b"[]"))
    assert second.find("resp_1").response == b"{}"
    assert os.path.lexists(tmp_path / "responses.sqlite.unreadable-1")
    assert not os.path.lexists(tmp_path / "responses.sqlite.unreadable-2")
    assert "responses.sqlite cannot be read" in caplog.text
    first.close()
    second.close()

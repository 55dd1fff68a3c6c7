"""POST /v1/completions and GET /v1/models through the official client, over a real socket."""

import pytest
from openai import AsyncOpenAI, NotFoundError

from gateway.core import FinishReason
from gateway.language import ModelLanguage
from tests.serving.stack import MODEL, Stack, Writer


async def test_a_plain_completion(client: AsyncOpenAI, stack: Stack, writer: Writer, language: ModelLanguage) -> None:
    stack.low.script = writer.says(" is nice.")
    answer = await client.completions.create(model=MODEL, prompt="Paris")
    assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" is nice.", "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(language.encode_text("Paris"))
    assert answer.usage.completion_tokens == len(writer.ids(" is nice.")) + 1


async def test_a_streamed_completion(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.says(" is nice.", FinishReason.LENGTH)
    options = {"include_usage": True}
    stream = await client.completions.create(
        model=MODEL, prompt="Paris", stream=True, extra_body={"stream_options": options}
    )
    chunks = [chunk async for chunk in stream]
    *texts, last, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == " is nice."
    assert all(chunk.choices[0].text for chunk in texts)
    assert (last.choices[0].text, last.choices[0].finish_reason) == ("", "length")
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(writer.ids(" is nice."))


@pytest.mark.parametrize("form", ["text", "ids"])
async def test_the_engine_gets_the_ids_of_the_prompt(
    client: AsyncOpenAI, stack: Stack, writer: Writer, language: ModelLanguage, form: str
) -> None:
    stack.low.script = writer.says("x")
    ids = list(language.encode_text("Paris").token_ids)
    await client.completions.create(model=MODEL, prompt="Paris" if form == "text" else ids)
    assert list(stack.low.calls[0].request.prompt.token_ids) == ids


async def test_the_models_are_listed(client: AsyncOpenAI, language: ModelLanguage) -> None:
    models = [model async for model in client.models.list()]
    assert [(model.id, model.object, model.owned_by) for model in models] == [(MODEL, "model", "crossover")]
    assert models[0] == await client.models.retrieve(MODEL)
    assert (models[0].model_extra or {})["max_model_len"] == language.context_length


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI) -> None:
    with pytest.raises(NotFoundError) as caught:
        await client.models.retrieve("huge")
    assert caught.value.code == "model_not_found"

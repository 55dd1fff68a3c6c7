"""Responses over a socket: whose answer it is when no model is named."""

import pytest
from openai import AsyncOpenAI, BadRequestError

from gateway.app import compose
from gateway.language import ModelLanguage
from gateway.serving.relay_lane import RelayLane
from gateway.serving.token_lane import TokenLane
from gateway.settings import ModelSettings, ProbeSettings, Settings, TritonSettings
from tests.fakes.alone import make_fleet
from tests.fakes.backend import ScriptedBackend
from tests.serving.stack import MODEL, TOKENIZER, Stack, Writer, connect, running


async def test_the_only_model_needs_no_name(stack: Stack, client: AsyncOpenAI, writer: Writer) -> None:
    stack.low.script = writer.script("Paris")
    answer = await client.responses.create(input="France?")
    assert (answer.model, answer.output_text) == (MODEL, "Paris")


async def test_one_of_several_models_has_to_be_named(language: ModelLanguage) -> None:
    low = ScriptedBackend("low")
    models = tuple(
        ModelSettings(id=name, tokenizer=TOKENIZER, backends={"low": TritonSettings("low", "grpc://unused:1")})
        for name in (MODEL, "other")
    )
    lanes = {model.id: TokenLane(language, {"low": low}, RelayLane({})) for model in models}
    fleets = [make_fleet(model, {"low": low}, ProbeSettings(interval_s=0.05, down_interval_s=0.02)) for model in models]
    two = Stack(low, low, app=compose(Settings(models, "127.0.0.1:0"), lanes, fleets))
    async with running(two), connect(two) as client:
        with pytest.raises(BadRequestError, match="Missing required parameter: 'model'") as caught:
            await client.responses.create(input="France?")
        assert caught.value.param == "model"

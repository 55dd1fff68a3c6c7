"""The needs that each backend serves: by default, by its server's configuration, and by the operator's settings."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.backends.capabilities import apply_overrides
from gateway.backends.relay import RelayServer
from gateway.backends.triton import TritonBackend
from gateway.backends.triton_config import ModelCapabilities, read_capabilities
from gateway.backends.vllm import VLLMBackend
from gateway.core import Need
from gateway.errors import NeedRefused
from gateway.settings import RelaySettings, TritonSettings, VLLMSettings
from tests.backends.conftest import REQUEST
from tests.fakes.script import Fault
from tests.fakes.sink import RecordingSink
from tests.fakes.triton import FakeTriton, model_config

BIAS = {"embedding_bias": [-1]}
PENALTIES = {"repetition_penalty": [1], "presence_penalty": [1], "frequency_penalty": [1]}
MIN_TOKENS = {"min_tokens": [1]}
GUIDE = {"guided_decoding_guide_type": [1], "guided_decoding_guide": [1]}
XGRAMMAR = {"guided_decoding_backend": "xgrammar"}
NOTHING: frozenset[Need] = frozenset()
DEFAULT_NEEDS = frozenset({Need.PENALTIES, Need.MIN_TOKENS})  # before the model's configuration is read


@pytest.mark.parametrize(
    ("inputs", "parameters", "needs"),
    [
        ({"input_ids": [-1]}, {}, set()),
        (BIAS, {}, {Need.LOGIT_BIAS}),
        (GUIDE, {}, set()),
        (GUIDE, {"guided_decoding_backend": ""}, set()),
        (GUIDE, {"guided_decoding_backend": "${guided_decoding_backend}"}, set()),
        (GUIDE, XGRAMMAR, {Need.GUIDE}),
        ({}, XGRAMMAR, set()),
        (BIAS | GUIDE, XGRAMMAR, {Need.LOGIT_BIAS, Need.GUIDE}),
        (PENALTIES, {}, {Need.PENALTIES}),
        ({"repetition_penalty": [1], "presence_penalty": [1]}, {}, set()),  # all three are sent
        (MIN_TOKENS, {}, {Need.MIN_TOKENS}),
        ({"return_log_probs": [1], "runtime_min_p": [1]}, XGRAMMAR, set()),
    ],
)
def test_a_triton_model_serves_the_needs_that_its_configuration_declares(
    inputs: Mapping[str, Sequence[int]], parameters: Mapping[str, str], needs: set[Need]
) -> None:
    assert read_capabilities(model_config(inputs, parameters).config, 1000) == ModelCapabilities(frozenset(needs), 1000)


INFO = {"xgrammar_tokenizer_info_path": "/engines/xgrammar.json"}
OFF = {"guided_decoding_backend": "", "xgrammar_tokenizer_info_path": "", "tokenizer_dir": ""}


@pytest.mark.parametrize(
    ("parameters", "needs"),
    [
        (OFF, set()),
        (OFF | XGRAMMAR, set()),
        (OFF | INFO, set()),
        (OFF | XGRAMMAR | {"xgrammar_tokenizer_info_path": "${xgrammar_tokenizer_info_path}"}, set()),
        (OFF | XGRAMMAR | INFO, {Need.GUIDE}),
    ],
)
def test_the_cpp_backend_follows_guides_where_both_of_its_parameters_are_filled_in(
    parameters: Mapping[str, str], needs: set[Need]
) -> None:
    assert read_capabilities(model_config(GUIDE, parameters, "tensorrtllm").config, 1000).needs == needs


@pytest.mark.parametrize(
    ("dims", "known", "abilities"),
    [
        ([-1], 1000, ModelCapabilities(frozenset({Need.LOGIT_BIAS}), 1000)),
        ([512], 1000, ModelCapabilities(frozenset({Need.LOGIT_BIAS}), 512)),
        ([512], 0, ModelCapabilities(frozenset({Need.LOGIT_BIAS}), 512)),
        ([-1], 0, ModelCapabilities(NOTHING, 0)),
    ],
)
def test_a_bias_has_the_length_of_the_models_input_or_of_the_vocabulary(
    dims: Sequence[int], known: int, abilities: ModelCapabilities
) -> None:
    assert read_capabilities(model_config({"embedding_bias": dims}, {}).config, known) == abilities


@pytest.mark.parametrize(
    ("own", "capabilities", "expected"),
    [
        ({Need.GUIDE}, {}, {Need.GUIDE}),
        ({Need.GUIDE}, {Need.GUIDE: False}, set()),
        ({Need.GUIDE}, {Need.GUIDE: True, Need.PRIORITY: True}, {Need.GUIDE, Need.PRIORITY}),
        (set(), {Need.GUIDE: False}, set()),
    ],
)
def test_the_operators_settings_override_a_backends_own_needs(
    own: set[Need], capabilities: Mapping[Need, bool], expected: set[Need]
) -> None:
    assert apply_overrides(frozenset(own), capabilities) == expected


async def test_vllm_serves_all_needs_except_those_that_require_a_flag() -> None:
    url = "http://127.0.0.1:1"
    vllm = VLLMBackend(VLLMSettings("vllm", url))
    corrected = VLLMBackend(VLLMSettings("vllm", url, capabilities={Need.PRIORITY: True, Need.GUIDE: False}))
    assert vllm.capabilities == frozenset(Need) - {Need.PRIORITY}
    assert corrected.capabilities == vllm.capabilities - {Need.GUIDE} | {Need.PRIORITY}


async def test_a_relay_takes_a_clients_own_body_and_nothing_else() -> None:
    assert RelayServer(RelaySettings("r", "http://127.0.0.1:1")).capabilities == {Need.RELAY}


# Over a socket.


@pytest.fixture
async def engine() -> AsyncIterator[FakeTriton]:
    async with FakeTriton().serving() as engine:
        engine.config = model_config(BIAS | GUIDE, XGRAMMAR)
        yield engine


def open_backend(engine: FakeTriton, capabilities: Mapping[Need, bool] | None = None) -> TritonBackend:
    settings = TritonSettings("triton", f"grpc://127.0.0.1:{engine.port}", capabilities=capabilities or {})
    return TritonBackend(settings, vocab_size=8)


async def test_triton_is_asked_once_it_is_ready_and_again_when_it_was_away(engine: FakeTriton) -> None:
    backend = open_backend(engine)
    engine.is_model_ready = False
    assert not await backend.is_ready()
    assert (backend.capabilities, engine.configs_told) == (DEFAULT_NEEDS, 0)
    engine.is_model_ready = True
    assert await backend.is_ready()
    assert await backend.is_ready()
    assert (backend.capabilities, engine.configs_told) == (frozenset({Need.LOGIT_BIAS, Need.GUIDE}), 1)
    engine.is_model_ready = False
    engine.config = model_config({}, {})
    assert not await backend.is_ready()
    assert backend.capabilities == {Need.LOGIT_BIAS, Need.GUIDE}  # they stay while the model is not ready
    engine.is_model_ready = True
    assert await backend.is_ready()
    assert (backend.capabilities, engine.configs_told) == (NOTHING, 2)
    await backend.aclose()


async def test_a_server_that_does_not_tell_is_ready_all_the_same_and_asked_again(engine: FakeTriton) -> None:
    backend = open_backend(engine)
    config, engine.config = engine.config, None
    assert await backend.is_ready()
    assert backend.capabilities == DEFAULT_NEEDS
    engine.config = config
    assert await backend.is_ready()
    assert backend.capabilities == {Need.LOGIT_BIAS, Need.GUIDE}
    await backend.aclose()


async def test_the_operators_word_goes_before_tritons(engine: FakeTriton) -> None:
    backend = open_backend(engine, {Need.GUIDE: False})
    assert await backend.is_ready()
    assert backend.capabilities == {Need.LOGIT_BIAS}
    granted = open_backend(engine, {Need.GUIDE: True, Need.PENALTIES: False})
    assert granted.capabilities == {Need.GUIDE, Need.MIN_TOKENS}
    await backend.aclose()
    await granted.aclose()


async def test_a_bias_has_the_length_that_the_server_declared(engine: FakeTriton) -> None:
    engine.config = model_config({"embedding_bias": [5]}, {})
    backend = open_backend(engine)
    assert await backend.is_ready()
    sink = RecordingSink()
    biased = replace(REQUEST, params=replace(REQUEST.params, logit_bias=((1, 2.0),)))
    sink.call = backend.start(biased, sink)
    await sink.ended()
    assert engine.asked[0].raw["embedding_bias"] == ((1, 5), [0.0, 2.0, 0.0, 0.0, 0.0])
    await backend.aclose()


PENALISED = replace(
    REQUEST, params=replace(REQUEST.params, frequency_penalty=0.5), needs={Need.PENALTIES: "frequency_penalty"}
)


async def test_a_need_that_the_engine_refuses_is_dropped_until_the_server_comes_back(
    engine: FakeTriton, caplog: pytest.LogCaptureFixture
) -> None:
    """The model declares penalties, but its engine does not follow them."""
    engine.config = model_config(PENALTIES | MIN_TOKENS, {})
    engine.script = lambda _: [Fault("unfollowed")]
    backend = open_backend(engine, {Need.PENALTIES: True})
    assert await backend.is_ready()
    sink = RecordingSink()
    sink.call = backend.start(PENALISED, sink)
    error = await sink.ended()
    assert isinstance(error, NeedRefused)
    assert (error.status, error.param) == (400, "frequency_penalty")
    assert error.message == "'frequency_penalty' is not supported by the engine of triton."
    assert await backend.is_ready()
    assert backend.capabilities == {Need.MIN_TOKENS}
    assert "triton does not support penalties after all" in caplog.text
    engine.is_model_ready = False
    assert not await backend.is_ready()
    engine.is_model_ready = True
    assert await backend.is_ready()
    assert backend.capabilities == {Need.PENALTIES, Need.MIN_TOKENS}
    await backend.aclose()

"""Every body for vLLM, by the request models of the deployed release and of the newest one, unknown fields included."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

import pytest

from deploy.stacks import WEIGHTS
from gateway.core import SamplingParams
from gateway.language import ModelLanguage
from tests.contract.vllm_bodies import BY_ROUTE, list_adapters, list_relayed, record_doctor, record_load_tester
from tests.contract.vllm_releases import DEPLOYED, NEWEST, Body, Release

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(400)]
BY_THE_CLIENT = {"logit_bias"}  # its keys are token ids
# OpenAI's for spoken answers. The relay lane passes on what a client sends; vLLM ignores these two.
NOT_VLLMS = {"unknown field .modalities", "unknown field .audio"}


@pytest.fixture
async def bodies() -> list[Body]:
    doctors = await record_doctor(ModelLanguage.load(WEIGHTS))
    return [*list_adapters(), *list_relayed(), *await record_load_tester(), *doctors]


@pytest.mark.parametrize("release", [DEPLOYED, NEWEST], ids=str)
async def test_vllm_takes_every_body_and_knows_each_of_its_fields(release: Release, bodies: list[Body]) -> None:
    complaints = release.check(bodies=bodies)
    assert [(body, found) for body, found in zip(bodies, complaints, strict=True) if set(found) - NOT_VLLMS] == []


async def test_a_field_that_is_misspelt_is_seen(bodies: list[Body]) -> None:
    misspelt = [(route, changed) for route, document in bodies for changed in misspell(document)]
    assert len(misspelt) > 200
    complaints = NEWEST.check(bodies=misspelt)
    assert [body for body, found in zip(misspelt, complaints, strict=True) if not found] == []


def misspell(document: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """The document once for each of its fields, also of those inside others, whose name lacks its last letter."""
    for name, value in document.items():
        yield {key[:-1] if key == name else key: inner for key, inner in document.items()}
        if isinstance(value, Mapping) and name not in BY_THE_CLIENT:
            yield from ({**document, name: changed} for changed in misspell(value))


def test_every_sampling_parameter_is_in_some_body() -> None:
    asked = [params for choices in BY_ROUTE.values() for params in choices]
    usual = SamplingParams(max_tokens=0)
    never = [
        field.name
        for field in fields(SamplingParams)
        if all(getattr(params, field.name) == getattr(usual, field.name) for params in asked)
    ]
    assert never == []

"""Embeddings, scores and rankings of the embedded engine, through the gateway's relay lane and the official client."""

import base64

import httpx
import numpy as np
import openai
import pytest

from deploy.launch import Launched
from deploy.stacks import MODEL

TEXTS = ["The weather in Oslo is sunny.", "The weather in Rome is sunny.", "12 + 30 = 42"]


def test_the_official_client_gets_embeddings_that_tell_texts_apart(embedded_stack: Launched) -> None:
    with openai.OpenAI(base_url=f"{embedded_stack.url}/v1", api_key="-") as client:
        answer = client.embeddings.create(model=MODEL, input=TEXTS)  # which it requests in base64
        floats = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float")
    first, second, third = (np.array(item.embedding) for item in answer.data)
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-5)
    assert first @ second > first @ third + 0.1
    assert floats.data[0].embedding == pytest.approx(first.tolist(), abs=1e-6)
    assert answer.usage.prompt_tokens > floats.usage.prompt_tokens > 0


def post(stack: Launched, path: str, **body: object) -> httpx.Response:
    return httpx.post(f"{stack.url}{path}", json={"model": MODEL, **body})


def test_documents_are_ranked_and_scored(embedded_stack: Launched) -> None:
    ranked = post(embedded_stack, "/v1/rerank", query="The weather in Lima", documents=TEXTS, top_n=2).json()
    assert [result["document"]["text"] in TEXTS[:2] for result in ranked["results"]] == [True, True]
    scored = post(embedded_stack, "/v1/score", text_1="The weather in Lima", text_2=TEXTS).json()
    assert [item["index"] for item in scored["data"]] == [0, 1, 2]
    assert min(scored["data"][0]["score"], scored["data"][1]["score"]) > scored["data"][2]["score"]
    by_index = {item["index"]: item["score"] for item in scored["data"]}
    assert ranked["results"][0]["relevance_score"] == pytest.approx(max(by_index.values()))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": "hello " * 1100}, 400),
        ("/v1/embeddings", {"input": [5000]}, 400),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, 400),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400),
        ("/v1/rerank", {"query": "a", "documents": []}, 400),
    ],
)
def test_what_cannot_be_embedded_is_refused(
    embedded_stack: Launched, path: str, body: dict[str, object], status: int
) -> None:
    answer = post(embedded_stack, path, **body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_ids_and_texts_are_embedded_alike(embedded_stack: Launched) -> None:
    ids = httpx.post(f"{embedded_stack.url}/tokenize", json={"model": MODEL, "prompt": "Hello"}).json()["tokens"]
    by_text, by_ids = (
        post(embedded_stack, "/v1/embeddings", input=given, encoding_format="base64").json()["data"][0]["embedding"]
        for given in ("Hello", [ids])
    )
    assert by_text == by_ids
    assert len(base64.b64decode(by_text)) % 4 == 0

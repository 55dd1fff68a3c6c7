"""Embeddings, scores and rankings, as vLLM's server answers them: POST /v1/embeddings, /v1/score and /v1/rerank.

In: parsed JSON and the model. Out: JSON values, or a WireError. A text's embedding is the mean of its tokens' vectors:
enough to try a client with, no more. Knows no connection.
"""

import base64
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from engines.reference.checkpoint import Floats
from engines.reference.vllm_http.errors import WireError, bad_request
from engines.reference.vllm_http.requests import check_model, validate
from engines.reference.vllm_http.served import ServedModel

Json = dict[str, Any]
TokenIds = list[Annotated[int, Field(ge=0)]]
Texts = Annotated[list[str], Field(min_length=1)]


class EmbeddingBody(BaseModel):
    model: str | None = None
    input: str | Annotated[TokenIds, Field(min_length=1)] | Texts | Annotated[list[TokenIds], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class ScoreBody(BaseModel):
    model: str | None = None
    text_1: str | Texts
    text_2: str | Texts


class Document(BaseModel):
    text: str


class RerankBody(BaseModel):
    model: str | None = None
    query: str
    documents: Annotated[list[str | Document], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=0)] = 0


def embeddings(document: object, model: ServedModel) -> Json:
    body = validate(EmbeddingBody, document)
    check_model(body.model, model)
    if body.dimensions is not None:
        raise bad_request("This model does not support matryoshka representation, changing output dimensions")
    inputs = [_ids(text, model) for text in _each(body.input)]
    encode = _as_base64 if body.encoding_format == "base64" else _as_list
    data = [
        {"index": index, "object": "embedding", "embedding": encode(model.embed(ids))}
        for index, ids in enumerate(inputs)
    ]
    return {**_head("embd", model), "data": data, "usage": _usage(inputs)}


def score(document: object, model: ServedModel) -> Json:
    body = validate(ScoreBody, document)
    check_model(body.model, model)
    left, right = (_as_texts(text) for text in (body.text_1, body.text_2))
    if len(left) != 1 and len(left) != len(right):
        raise WireError("Input lengths must be either 1:1, 1:N or N:N")
    left = left * len(right) if len(left) == 1 else left
    pairs = [(_ids(one, model), _ids(other, model)) for one, other in zip(left, right, strict=True)]
    data = [
        {"index": index, "object": "score", "score": _compare(one, other, model)}
        for index, (one, other) in enumerate(pairs)
    ]
    return {**_head("score", model), "data": data, "usage": _usage([ids for pair in pairs for ids in pair])}


def rerank(document: object, model: ServedModel) -> Json:
    body = validate(RerankBody, document)
    check_model(body.model, model)
    query = _ids(body.query, model)
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    documents = [_ids(text, model) for text in texts]
    results = [
        {"index": index, "document": {"text": texts[index], "multi_modal": None},
         "relevance_score": _compare(query, ids, model)}
        for index, ids in enumerate(documents)
    ]  # fmt: skip
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    used = _usage([query, *documents])
    head = {"id": f"rerank-{model.new_id()}", "model": model.name}
    return {**head, "usage": used, "results": results[: body.top_n or None]}


def _each(given: object) -> Sequence[object]:
    is_one = isinstance(given, str) or (isinstance(given, list) and isinstance(given[0], int))
    return [given] if is_one or not isinstance(given, list) else given


def _as_texts(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


def _ids(given: object, model: ServedModel) -> list[int]:
    ids = model.encode(given) if isinstance(given, str) else list(given) if isinstance(given, list) else []
    if not ids:
        raise WireError("Either prompt or prompt_embeds must be provided and non-empty.")
    if len(ids) > model.max_model_len:
        raise WireError(f"This model's maximum context length is {model.max_model_len} tokens, not {len(ids)}.")
    if max(ids) >= model.vocab_size:
        raise WireError(f"Token id {max(ids)} is out of vocabulary")
    return ids


def _compare(one: Sequence[int], other: Sequence[int], model: ServedModel) -> float:
    """Returns the cosine of the angle between two embeddings, which have the length 1."""
    return float(model.embed(one) @ model.embed(other))


def _as_list(embedding: Floats) -> list[float]:
    found: list[float] = embedding.tolist()
    return found


def _as_base64(embedding: Floats) -> str:
    return base64.b64encode(embedding.astype(np.dtype("<f4")).tobytes()).decode()


def _head(prefix: str, model: ServedModel) -> Json:
    return {"id": f"{prefix}-{model.new_id()}", "object": "list", "created": int(time.time()), "model": model.name}


def _usage(inputs: Sequence[Sequence[int]]) -> Json:
    tokens = sum(map(len, inputs))
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}

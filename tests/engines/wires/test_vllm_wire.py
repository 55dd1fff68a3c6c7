"""vLLM's HTTP wire, the same tests on the reference engine's server and on a real vLLM with the same weights."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from engines.reference.guide import Guide
from tests.engines.wires.expected import QUESTION, TOKENIZER, complete, scored, scored_prompt
from tests.engines.wires.servers import WEIGHTS, is_positive, is_zero, metric_becomes, read_metric, serving
from tests.workers import ON_CPU_STACK

Json = dict[str, Any]  # any JSON object
MODEL = "crossover-mini"
PROMPT = list(range(10, 20))
EOS = 2
COMPLETIONS, GENERATE, ABORT = "/v1/completions", "/inference/v1/generate", "/inference/v1/abort_requests"
USAGE = {"prompt_tokens": 10, "total_tokens": 18, "completion_tokens": 8}
USAGE_DETAILS = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
RUNNING = {"name": "vllm:num_requests_running", "engine": "0", "model_name": MODEL}
COMPLETED = {**RUNNING, "name": "vllm:request_success_total", "finished_reason": "length"}


@pytest.fixture(scope="module", params=["embedded", pytest.param("vllm", marks=ON_CPU_STACK)])
def vllm(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its address."""
    if request.param == "embedded":
        with serving("engines.reference.vllm_http", "--port", "0") as server:
            yield server.addresses[0]
    else:
        yield request.getfixturevalue("cpu_stack").stack.backends["vllm"]["url"]


@pytest.fixture
async def http(vllm: str) -> AsyncIterator[ClientSession]:
    async with ClientSession(vllm, timeout=ClientTimeout(60)) as session:
        yield session


async def post(http: ClientSession, path: str, body: object, **headers: str) -> tuple[int, Any]:
    async with http.post(path, json=body, headers=headers) as response:
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def events(http: ClientSession, path: str, body: Json, **headers: str) -> list[Json]:
    """The stream's events without [DONE], which has to be the last."""
    async with http.post(path, json=body | {"stream": True}, headers=headers) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *data, done, end = (await response.text()).split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in data]


def completion(max_tokens: int = 8, prompt: object = PROMPT, **fields: object) -> Json:
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **fields}


def generate(max_tokens: int = 8, prompt: object = PROMPT, **sampling: object) -> Json:
    return {
        "model": MODEL,
        "token_ids": prompt,
        "sampling_params": {"max_tokens": max_tokens, "temperature": 0, **sampling},
    }


async def answer(http: ClientSession, *arguments: object, **sampling: object) -> Json:
    """The choice of a generate call."""
    status, body = await post(http, GENERATE, generate(*arguments, **sampling))  # type: ignore[arg-type] # handed on
    assert status == 200, body
    choice: Json = body["choices"][0]
    return choice


async def test_completion_has_vllms_shape(http: ClientSession) -> None:
    expected = complete(PROMPT, 8)
    body = completion(return_token_ids=True, ignore_eos=True)
    status, got = await post(http, COMPLETIONS, body, **{"x-request-id": "abc"})
    assert status == 200
    assert isinstance(got.pop("created"), int)
    assert isinstance(got.pop("system_fingerprint"), str)
    choice = {"index": 0, "text": TOKENIZER.decode(expected), "finish_reason": "length", "stop_reason": None}
    choice |= {"logprobs": None, "prompt_logprobs": None, "routed_experts": None}
    nothing = ("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics")
    assert got == dict.fromkeys(nothing) | {
        "id": "cmpl-abc",
        "object": "text_completion",
        "model": MODEL,
        "choices": [choice | {"token_ids": expected, "prompt_token_ids": PROMPT}],
        "usage": USAGE | USAGE_DETAILS,
    }


async def test_completion_streams_text_ids_and_usage(http: ClientSession) -> None:
    expected = complete(PROMPT, 8)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = await events(
        http, COMPLETIONS, completion(return_token_ids=True, stream_options=options), **{"x-request-id": "abc"}
    )
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == expected
    assert "".join(choice["text"] for choice in choices) == TOKENIZER.decode(expected)
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert (last["id"], last["choices"]) == ("cmpl-abc", [])
    assert last["usage"] == USAGE


@pytest.mark.parametrize("wrap", [lambda prompt: prompt, lambda prompt: [prompt]], ids=["bare", "list of one"])
async def test_prompts_are_text_or_ids_bare_or_in_a_list(http: ClientSession, wrap: Callable[[object], object]) -> None:
    ids = TOKENIZER.encode("The capital of France is").ids
    expected = complete(ids, 3)
    for prompt in ("The capital of France is", ids):
        _, body = await post(http, COMPLETIONS, completion(3, wrap(prompt), return_token_ids=True))
        assert body["choices"][0]["token_ids"] == expected


async def test_generate_has_the_shape(http: ClientSession) -> None:
    status, got = await post(http, GENERATE, generate(), **{"x-request-id": "abc"})
    assert status == 200
    assert isinstance(got.pop("created"), int)
    choice = {"index": 0, "finish_reason": "length", "stop_reason": None, "token_ids": complete(PROMPT, 8)}
    choice |= dict.fromkeys(("routed_experts", "sampling_mask", "logprobs"))
    choice["weight_versions"] = [{"version": "default", "start": 0, "end": 8}]
    nothing = ("prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders")
    others = ("metrics", "kv_transfer_params", "ec_transfer_params")
    assert got == dict.fromkeys((*nothing, *others)) | {
        "request_id": "generate-tokens-abc",
        "model": MODEL,
        "usage": USAGE | USAGE_DETAILS,
        "output_mode": "tokens",
        "choices": [choice],
    }


async def test_generate_streams_deltas_of_ids(http: ClientSession) -> None:
    body = generate() | {"stream_options": {"include_usage": True}, "return_token_ids": True}
    *chunks, last = await events(http, GENERATE, body, **{"x-request-id": "abc"})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token_id for choice in choices for token_id in choice["token_ids"]] == complete(PROMPT, 8)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert chunks[0]["prompt_token_ids"] == PROMPT
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert last == {"request_id": "generate-tokens-abc", "usage": USAGE, "output_mode": "tokens", "choices": []}


async def test_end_token_is_among_the_ids_is_counted_and_has_no_text(http: ClientSession) -> None:
    expected = complete(QUESTION, 64, end_ids=(EOS,))
    _, body = await post(http, COMPLETIONS, completion(64, QUESTION, return_token_ids=True))
    (choice,) = body["choices"]
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == (expected, "stop", None)
    assert body["usage"]["completion_tokens"] == len(expected)
    assert choice["text"] == TOKENIZER.decode(expected[:-1])


FIRST_STOP = 924  # among the first tokens of the greedy answer to PROMPT
SAMPLING: dict[str, tuple[Json, Json]] = {
    "ignore_eos": ({"ignore_eos": True}, {"ignore_eos": True}),
    "min_tokens": ({"min_tokens": 24}, {"min_tokens": 24, "end_ids": (EOS, 0)}),
    "a stop token": ({"stop_token_ids": [FIRST_STOP]}, {"stop_ids": (FIRST_STOP,), "end_ids": (EOS, 0)}),
    "top_k 1 is greedy": ({"temperature": 2, "top_k": 1, "ignore_eos": True}, {"ignore_eos": True}),
    "min_p 1 is greedy": ({"temperature": 2, "min_p": 1.0, "ignore_eos": True}, {"ignore_eos": True}),
    "penalty": ({"repetition_penalty": 1.8, "ignore_eos": True}, {"repetition_penalty": 1.8, "ignore_eos": True}),
    "bias": ({"logit_bias": {"77": 100}, "ignore_eos": True}, {"logit_bias": ((77, 100.0),), "ignore_eos": True}),
}


@pytest.mark.parametrize("case", SAMPLING)
async def test_sampling_is_the_engines_on_both_endpoints(http: ClientSession, case: str) -> None:
    fields, params = SAMPLING[case]
    expected = complete(PROMPT, 24, **params)
    choice = await answer(http, 24, **fields)
    stop_reason = FIRST_STOP if "stop_ids" in params else None
    assert (choice["token_ids"], choice["stop_reason"]) == (expected, stop_reason)
    _, body = await post(http, COMPLETIONS, completion(24, return_token_ids=True, **fields))
    assert body["choices"][0]["token_ids"] == expected


async def test_a_seed_repeats_an_answer_and_none_does_not(http: ClientSession) -> None:
    def hot(seed: int | None) -> Json:
        return {"temperature": 1.5, "ignore_eos": True, "seed": seed}

    first, again = [(await answer(http, 24, **hot(7)))["token_ids"] for _ in range(2)]
    assert first == again
    unseeded = [(await answer(http, 24, **hot(None)))["token_ids"] for _ in range(3)]
    assert len(set(map(tuple, unseeded))) > 1


async def test_logprobs_of_sampled_tokens_as_text_and_as_ids(http: ClientSession) -> None:
    _, body = await post(http, COMPLETIONS, completion(4, logprobs=0, return_token_ids=True))
    (choice,) = body["choices"]
    logprobs, texts = choice["logprobs"], [TOKENIZER.decode([token_id]) for token_id in choice["token_ids"]]
    assert logprobs["tokens"] == texts
    assert logprobs["text_offset"] == [sum(map(len, texts[:index])) for index in range(4)]
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    content = (await answer(http, 4, logprobs=0))["logprobs"]["content"]
    assert [entry["token_id"] for entry in content] == choice["token_ids"]
    assert [entry["logprob"] for entry in content] == pytest.approx(logprobs["token_logprobs"], abs=1e-4)
    for entry in content:
        itself = {name: entry[name] for name in ("token_id", "logprob", "rank")}
        assert entry == itself | {"top_logprobs": [itself]}
    named = completion(4, logprobs=1, return_tokens_as_token_ids=True)
    _, body = await post(http, COMPLETIONS, named)
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert body["choices"][0]["logprobs"]["tokens"] == names
    assert [list(top) for top in body["choices"][0]["logprobs"]["top_logprobs"]] == [[name] for name in names]


async def test_alternatives_are_the_models_own_likeliest_whatever_is_sampled(http: ClientSession) -> None:
    """The bias makes the sampled token an unlikely one: it stands first, and on the generate endpoint among the k."""
    bias = {"77": 100}
    (expected,) = scored(PROMPT, 1, logprobs=3, logit_bias=((77, 100.0),))
    (entry,) = (await answer(http, 1, logprobs=3, logit_bias=bias))["logprobs"]["content"]
    assert (entry["token_id"], entry["rank"]) == (77, expected.rank)
    assert [top["rank"] for top in entry["top_logprobs"]] == [expected.rank, 1, 2]
    ids = [token_id for token_id, _ in expected.top]
    assert [top["token_id"] for top in entry["top_logprobs"]] == [77, *ids[:2]]
    values = [expected.logprob, *(logprob for _, logprob in expected.top)]
    assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(values[:3], abs=1e-3)
    body = completion(1, logprobs=3, logit_bias=bias, return_tokens_as_token_ids=True)
    _, got = await post(http, COMPLETIONS, body)
    (top,) = got["choices"][0]["logprobs"]["top_logprobs"]
    assert list(top) == [f"token_id:{token_id}" for token_id in (77, *ids)]
    assert list(top.values()) == pytest.approx(values, abs=1e-3)


async def test_streamed_logprobs_are_the_whole_ones(http: ClientSession) -> None:
    options = {"logprobs": 2, "return_tokens_as_token_ids": True}
    _, body = await post(http, COMPLETIONS, completion(6, **options))
    chunks = await events(http, COMPLETIONS, completion(6, **options))
    whole = body["choices"][0]["logprobs"]
    for name in ("tokens", "text_offset"):
        assert [value for chunk in chunks for value in chunk["choices"][0]["logprobs"][name]] == whole[name]
    content = (await answer(http, 6, logprobs=2))["logprobs"]["content"]
    chunks = await events(http, GENERATE, generate(6, logprobs=2))
    streamed = [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert [entry["token_id"] for entry in streamed] == [entry["token_id"] for entry in content]
    assert [len(entry["top_logprobs"]) for entry in streamed] == [2] * 6


async def test_pieces_of_a_character_have_their_text_with_the_last_of_them(http: ClientSession) -> None:
    pieces = TOKENIZER.encode("é").ids
    assert len(pieces) == 2
    guided = completion(3, logprobs=0, structured_outputs={"regex": "é"})
    _, body = await post(http, COMPLETIONS, guided)
    assert body["choices"][0]["logprobs"]["tokens"] == ["", "é", "<|im_end|>"]
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 0, 1]


async def test_logprobs_of_the_prompt(http: ClientSession) -> None:
    expected = scored_prompt(PROMPT, 2)
    status, body = await post(http, GENERATE, generate(1, prompt_logprobs=2))
    _, completed = await post(http, COMPLETIONS, completion(1, prompt_logprobs=2))
    assert status == 200
    for logprobs in (body["prompt_logprobs"], completed["choices"][0]["prompt_logprobs"]):
        assert logprobs[0] is None
        for token_id, entry, score in zip(PROMPT[1:], logprobs[1:], expected, strict=True):
            assert next(iter(entry)) == str(token_id)
            assert set(entry) == {str(token_id), *(str(likely) for likely, _ in score.top)}
            itself = entry[str(token_id)]
            assert itself["logprob"] == pytest.approx(score.logprob, abs=1e-3)
            assert itself["rank"] == score.rank
            assert itself["decoded_token"] == TOKENIZER.decode([token_id])
    _, body = await post(http, GENERATE, generate(1, prompt_logprobs=0, detokenize=False))
    assert [
        entry[str(token_id)]["decoded_token"]
        for token_id, entry in zip(PROMPT[1:], body["prompt_logprobs"][1:], strict=True)
    ] == [None] * 9


async def test_echo_puts_the_prompt_before_the_answer(http: ClientSession) -> None:
    prompt = TOKENIZER.encode("Zoë is<|im_end|>").ids
    text = TOKENIZER.decode(prompt, skip_special_tokens=False)
    _, plain = await post(http, COMPLETIONS, completion(4, prompt, logprobs=2))
    _, echoed = await post(http, COMPLETIONS, completion(4, prompt, logprobs=2, echo=True))
    (answered,), (choice,) = plain["choices"], echoed["choices"]
    assert choice["text"] == text + answered["text"]
    logprobs, first = choice["logprobs"], len(prompt)
    assert "".join(logprobs["tokens"][:first]) == text
    assert logprobs["tokens"][first:] == answered["logprobs"]["tokens"]
    assert logprobs["text_offset"] == [sum(map(len, logprobs["tokens"][:index])) for index in range(first + 4)]
    expected = [score.logprob for score in scored_prompt(prompt, 0)]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    assert logprobs["token_logprobs"][1:first] == pytest.approx(expected, abs=1e-3)
    assert echoed["usage"] == plain["usage"]


async def test_a_streamed_echo_has_the_prompts_logprobs_with_the_first_token_and_leaves_its_text_to_its_ids(
    http: ClientSession,
) -> None:
    body = completion(6, echo=True, logprobs=1, return_token_ids=True, return_tokens_as_token_ids=True)
    _, whole = await post(http, COMPLETIONS, body)
    choices = [chunk["choices"][0] for chunk in await events(http, COMPLETIONS, body)]
    ids = whole["choices"][0]["token_ids"]
    named = [f"token_id:{token_id}" for token_id in (*PROMPT, *ids)]
    assert choices[0]["logprobs"]["tokens"] == named[: len(PROMPT) + len(choices[0]["token_ids"])]
    for name in ("tokens", "text_offset"):
        streamed = [value for choice in choices for value in choice["logprobs"][name]]
        assert streamed == whole["choices"][0]["logprobs"][name]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["prompt_token_ids"] for choice in choices] == [PROMPT] + [None] * (len(choices) - 1)


async def test_echo_without_an_answer_is_the_prompt_alone_and_one_token_counted(http: ClientSession) -> None:
    _, body = await post(http, COMPLETIONS, completion(0, echo=True, logprobs=0))
    assert body["choices"][0]["text"] == TOKENIZER.decode(PROMPT)
    assert len(body["choices"][0]["logprobs"]["tokens"]) == len(PROMPT)
    assert body["usage"]["completion_tokens"] == 1


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRUCTURES: dict[str, tuple[Json, Guide]] = {
    "schema": ({"json": SCHEMA}, Guide("json_schema", json.dumps(SCHEMA))),
    "schema as text": ({"json": json.dumps(SCHEMA)}, Guide("json_schema", json.dumps(SCHEMA))),
    "any object": ({"json_object": True}, Guide("json")),
    "regex": ({"regex": "[0-9]{4}-[0-9]{2}"}, Guide("regex", "[0-9]{4}-[0-9]{2}")),
    "choice": ({"choice": ["Rome", "Paris"]}, Guide("choice", '["Rome", "Paris"]')),
    "grammar": ({"grammar": 'root ::= "yes" | "no"'}, Guide("ebnf_grammar", 'root ::= "yes" | "no"')),
    "lark": ({"grammar": 'start: "yes" | "no"'}, Guide("ebnf_grammar", 'start: "yes" | "no"')),
}


@pytest.mark.parametrize("case", STRUCTURES)
async def test_structured_outputs_are_followed_on_both_endpoints(http: ClientSession, case: str) -> None:
    structured, guide = STRUCTURES[case]
    expected = complete(QUESTION, 60, guide=guide, end_ids=(EOS, 0))
    assert expected != complete(QUESTION, 60, end_ids=(EOS, 0))
    assert (await answer(http, 60, QUESTION, structured_outputs=structured))["token_ids"] == expected
    body = completion(60, QUESTION, structured_outputs=structured, return_token_ids=True)
    assert (await post(http, COMPLETIONS, body))[1]["choices"][0]["token_ids"] == expected


async def test_min_tokens_and_ignore_eos_do_not_break_a_guide(http: ClientSession) -> None:
    """An answer whose grammar has ended ends before min_tokens; ignoring its end, it goes on unguided."""
    structured, guide = STRUCTURES["choice"]
    holding = await answer(http, 20, QUESTION, min_tokens=20, structured_outputs=structured)
    assert holding["token_ids"] == complete(QUESTION, 20, guide=guide, end_ids=(EOS, 0))
    ignoring = await answer(http, 20, QUESTION, ignore_eos=True, structured_outputs=structured)
    assert ignoring["token_ids"] == complete(QUESTION, 20, guide=guide, ignore_eos=True)
    assert len(ignoring["token_ids"]) == 20


async def test_unset_max_tokens_is_16_for_completions_and_the_context_for_generate(http: ClientSession) -> None:
    _, body = await post(http, COMPLETIONS, {"model": MODEL, "prompt": PROMPT, "ignore_eos": True})
    assert body["usage"]["completion_tokens"] == 16
    fill = {"token_ids": [5] * 1000, "sampling_params": {"ignore_eos": True}}
    _, body = await post(http, GENERATE, fill)
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (24, "length")


# (path, body, a part of the message, param; where they are others than usual: type and status).
Refused = tuple[str, Json, str, str | None] | tuple[str, Json, str, str | None, str, int]
NO_MODEL = f"The model `x` does not exist. Valid aliases: {MODEL}."
TOO_FEW = "min_tokens must be less than or equal to max_tokens=4, got 5."
SCHEMA_MISSING = {"type": "json_schema"}
ERRORS: dict[str, Refused] = {
    "model": (COMPLETIONS, completion(model="x"), NO_MODEL, "model", "NotFoundError", 404),
    "model, generate": (GENERATE, generate() | {"model": "x"}, NO_MODEL, "model", "NotFoundError", 404),
    "min over max": (COMPLETIONS, completion(4, min_tokens=5), TOO_FEW, None),
    "min over max, generate": (GENERATE, generate(4, min_tokens=5), TOO_FEW, None),
    "context": (COMPLETIONS, completion(prompt=[5] * 1100), "maximum context length is 1024 tokens", "input_tokens"),
    "full context": (COMPLETIONS, completion(prompt=[5] * 1024), "max_tokens must be at least 1, got 0.", "max_tokens"),
    "context, generate": (GENERATE, generate(prompt=[5] * 1100), "The decoder prompt (length 1100) is longer", None),
    "output": (COMPLETIONS, completion(2000), "cannot be greater than max_model_len=1024", "max_tokens"),
    "temperature": (COMPLETIONS, completion(temperature=-1), "must be non-negative, got -1.0.", "temperature"),
    "top_k": (GENERATE, generate(top_k=-5, temperature=1), "top_k must be 0 (disable), or at least 1, got -5.", None),
    "vocabulary": (GENERATE, generate(prompt=[5000]), "Token id 5000 is out of vocabulary", None),
    "no prompt": (COMPLETIONS, {"model": MODEL}, "prompt_embeds must be provided and non-empty. ", "prompt"),
    "empty list": (COMPLETIONS, completion(prompt=[]), "You must pass at least one prompt", None),
    "stream options": (
        *(COMPLETIONS, completion(stream_options={"include_usage": True})),
        *("Stream options can only be defined when `stream=True`.", "stream_options"),
    ),
    "type": (
        *(COMPLETIONS, completion(temperature="hot"), "Input should be a valid number", "body.temperature"),
        *("Bad Request", 400),
    ),
    "missing": (GENERATE, {"token_ids": [1]}, "Field required", "body.sampling_params", "Bad Request", 400),
    "min_p": (GENERATE, generate(min_p=1.5, temperature=1), "min_p must be in [0, 1], got 1.5.", None),
    "bias": (GENERATE, generate(logit_bias={"5000": 1}), "token_id(s) [5000] in logit_bias", "logit_bias"),
    "bias key": (COMPLETIONS, completion(logit_bias={"a": 1}), "cannot be converted to integer", "logit_bias"),
    "stop id": (GENERATE, generate(stop_token_ids=[1024]), "token_id(s) [1024] in stop_token_ids", "stop_token_ids"),
    "logprobs": (GENERATE, generate(logprobs=21), "greater than max allowed: 20", "logprobs"),
    "all logprobs": (GENERATE, generate(prompt_logprobs=-1), "greater than max allowed: 20", "prompt_logprobs"),
    "negative logprobs": (GENERATE, generate(logprobs=-2), "must be non-negative or -1, got -2.", "logprobs"),
    "negative, completion": (COMPLETIONS, completion(logprobs=-2), "must be a positive value or -1.", "logprobs"),
    "streamed prompt logprobs": (
        *(COMPLETIONS, completion(prompt_logprobs=1, stream=True)),
        *("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"),
    ),
    "no grammar": (GENERATE, generate(structured_outputs={"json": {"type": "objekt"}}), "Grammar error: ", None),
    "no JSON": (COMPLETIONS, completion(structured_outputs={"json": "{"}), "Invalid grammar specification: ", None),
    "no choice": (GENERATE, generate(structured_outputs={"choice": []}), "Choice '[]' cannot be an empty list", None),
    "empty grammar": (GENERATE, generate(structured_outputs={"grammar": " "}), "cannot be an empty string", None),
    "no object": (GENERATE, generate(structured_outputs={"json_object": False}), "must be True if set", None),
    "deep schema": (GENERATE, generate(structured_outputs={"json": "[" * 65 + "]" * 65}), "at most 64 levels", None),
    "no schema": (COMPLETIONS, completion(response_format=SCHEMA_MISSING), "must be provided", "response_format"),
    "abort": (ABORT, {}, "Missing 'request_ids' in request body", None, "Bad Request", 400),
}


def check_error(found: Json, refused: Refused) -> None:
    _, _, message, param, kind, status = refused if len(refused) == 6 else (*refused, "BadRequestError", 400)
    error = found["error"]
    assert (error.pop("message").count(message), found) == (
        1,
        {"error": {"type": kind, "param": param, "code": status}},
    )


@pytest.mark.parametrize("case", ERRORS)
async def test_errors_have_vllms_status_shape_and_words(http: ClientSession, case: str) -> None:
    path, body, *_ = ERRORS[case]
    status, found = await post(http, path, body)
    assert status == found["error"]["code"]
    check_error(found, ERRORS[case])


async def test_what_the_front_end_refuses_of_a_stream_is_a_status(http: ClientSession) -> None:
    for case in ("model, generate", "context", "min over max", "min_p", "bias key", "no schema"):
        path, body, *_ = ERRORS[case]
        status, found = await post(http, path, body | {"stream": True})
        assert status == found["error"]["code"]
        check_error(found, ERRORS[case])


LATE = (
    *("context, generate", "vocabulary", "bias", "stop id", "logprobs", "all logprobs"),
    *("no grammar", "no JSON", "no choice", "deep schema"),
)


@pytest.mark.parametrize("case", LATE)
async def test_what_the_engine_refuses_of_a_stream_is_an_event_in_it(http: ClientSession, case: str) -> None:
    path, body, *_ = ERRORS[case]
    (event,) = await events(http, path, body)
    check_error(event, ERRORS[case])


async def test_malformed_json_is_a_bad_request(http: ClientSession) -> None:
    async with http.post(COMPLETIONS, data=b'{"model":', headers={"content-type": "application/json"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["type"], error["code"]) == (400, "Bad Request", 400)
    async with http.post(COMPLETIONS, data=b"{}", headers={"content-type": "text/plain"}) as response:
        error = (await response.json())["error"]
    assert (response.status, error["type"]) == (400, "Bad Request")


@pytest.mark.alone  # leaving races with the answers' ends: a small model makes 1000 tokens in seconds
@pytest.mark.parametrize("is_streaming", [True, False])
async def test_clients_that_leave_free_the_engine(http: ClientSession, vllm: str, is_streaming: bool) -> None:
    metrics, body = f"{vllm}/metrics", generate(1000, ignore_eos=True) | {"stream": is_streaming}
    before = read_metric(metrics, **COMPLETED)

    async def ask() -> None:
        async with http.post(GENERATE, json=body) as response:
            await response.read()

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(ask()) for _ in range(32)]
        await metric_becomes(is_positive, metrics, **RUNNING)
        left = [call.cancel() for call in calls]
    assert any(left)  # an engine may end the first answers before it begins the others, but not all
    await metric_becomes(is_zero, metrics, **RUNNING)
    assert read_metric(metrics, **COMPLETED) - before == left.count(False)


async def aborted(http: ClientSession, call: str) -> list[str]:
    """The events of a long answer that is aborted after its first one."""
    body = generate(1000, ignore_eos=True) | {"stream": True}
    async with http.post(GENERATE, json=body, headers={"x-request-id": call}) as response:
        await response.content.readuntil(b"\n\n")
        status, _ = await post(http, ABORT, {"request_ids": [f"generate-tokens-{call}", "unknown"]})
        assert status == 200
        return (await response.text()).split("\n\n")


@pytest.mark.alone
async def test_abort_ends_the_stream_with_its_reason(http: ClientSession, vllm: str) -> None:
    reasons = []
    for attempt in range(30):  # the abort races with the answer's end: a small model may make 1000 tokens first
        *_, last, done, _ = await aborted(http, f"abc-{attempt}")
        assert done == "data: [DONE]"
        reasons.append(json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"])
        if reasons[-1] == "abort":
            break
    assert reasons[-1] == "abort"
    assert set(reasons[:-1]) <= {"length"}
    await metric_becomes(is_zero, f"{vllm}/metrics", **RUNNING)


async def test_models_names_the_context_length(http: ClientSession) -> None:
    async with http.get("/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert (card["id"], card["object"], card["root"], card["max_model_len"]) == (MODEL, "model", str(WEIGHTS), 1024)


async def test_tokenizer_routes(http: ClientSession) -> None:
    status, body = await post(http, "/tokenize", {"model": MODEL, "prompt": "Hello é", "return_token_strs": True})
    strings = ["Hello", "Ġ", "Ã", "©"]
    assert (status, body["count"], body["max_model_len"], body["token_strs"]) == (200, 4, 1024, strings)
    assert await post(http, "/detokenize", {"model": MODEL, "tokens": body["tokens"]}) == (200, {"prompt": "Hello é"})
    assert (await post(http, "/tokenize", {"model": "x", "prompt": "Hello"}))[0] == 404


async def test_health_and_version_answer(http: ClientSession) -> None:
    async with http.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with http.get("/version") as response:
        assert (await response.json())["version"].startswith("0.32.0")


async def test_metrics_count_tokens_and_finished_requests(http: ClientSession, vllm: str) -> None:
    def read() -> tuple[float, ...]:
        labels = {"engine": "0", "model_name": MODEL}
        return (
            read_metric(f"{vllm}/metrics", "vllm:prompt_tokens_total", **labels),
            read_metric(f"{vllm}/metrics", "vllm:generation_tokens_total", **labels),
            read_metric(f"{vllm}/metrics", "vllm:request_success_total", finished_reason="length", **labels),
        )

    before = read()
    # A prompt of its own, for vLLM's prefix cache counts a known one too, but let nothing depend on it.
    await answer(http, 5, [901, 902, 903], ignore_eos=True)
    assert [after - was for was, after in zip(before, read(), strict=True)] == [3, 5, 1]
    assert read_metric(f"{vllm}/metrics", "vllm:num_requests_waiting", model_name=MODEL) == 0
    assert read_metric(f"{vllm}/metrics", "vllm:kv_cache_usage_perc", model_name=MODEL) == 0

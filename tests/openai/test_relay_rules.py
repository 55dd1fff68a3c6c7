"""Which bodies may go on to an engine unread, as functions of their JSON: no loop, no sockets."""

import time
from collections.abc import Mapping

import orjson
import pytest

from gateway.errors import InvalidRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.generation import MAX_SEQUENCES
from gateway.serving.relay_rules import count_sequences, find_barred, find_refusal, may_fetch
from gateway.settings import AllowSettings
from gateway.wire.fields import Only

CHAT, TEXT, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
DEFAULT = AllowSettings()
DATA = "data:image/png;base64,AAAA"
INSIDE = "http://169.254.169.254/latest/meta-data"


def message(*parts: Mapping[str, object]) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": INSIDE}, *parts]}]}


def refused(document: Mapping[str, object], path: str = CHAT, allow: AllowSettings = DEFAULT) -> str | None:
    """The field that is named."""
    refusal = find_refusal({"model": "tiny", **document}, path, allow)
    if refusal is None:
        return None
    assert refusal.param is not None
    assert f"'{refusal.param}'" in refusal.message
    assert "'allow." in refusal.message
    return refusal.param


@pytest.mark.parametrize(
    "document",
    [
        message({"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}),
        message({"type": "image_url", "image_url": "DATA:image/png;base64,AAAA"}),
        message({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
        message({"type": "file", "file": {"file_data": DATA, "filename": "a.pdf"}}),
        {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp3"}},
        {"temperature": 0.5, "max_tokens": 9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["."], "stream": True},
        {"stream_options": {"include_usage": True}, "user": "u", "reasoning_effort": "low"},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"url": {}}}}}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"default": {"url": INSIDE}}}}]},
        {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True},
        {"chat_template": None, "documents": None, "anything": None},
        {"include_reasoning": True, "bad_words": [], "use_beam_search": False, "echo": False, "priority": 0},
    ],
)
def test_what_a_chat_may_hold_by_default(document: Mapping[str, object]) -> None:
    assert refused(document) is None


@pytest.mark.parametrize(
    ("document", "param"),
    [
        (message({"type": "image_url", "image_url": {"url": INSIDE}}), "messages.0.content.1.image_url.url"),
        (message({"type": "image_url", "image_url": INSIDE}), "messages.0.content.1.image_url"),
        (message({"image_url": INSIDE}), "messages.0.content.1.image_url"),  # vLLM needs no type
        (message({"type": "text", "text": "?", "image_url": INSIDE}), "messages.0.content.1.image_url"),
        (message({"type": "image_url", "image_url": [INSIDE]}), "messages.0.content.1.image_url.0"),
        (message({"type": "input_image", "image_url": INSIDE}), "messages.0.content.1.image_url"),
        (
            message({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}),
            "messages.0.content.1.image_url.url",
        ),
        (message({"type": "image_url", "image_url": {"url": ""}}), "messages.0.content.1.image_url.url"),
        (message({"type": "video_url", "video_url": {"url": "ftp://h/v"}}), "messages.0.content.1.video_url.url"),
        (message({"type": "audio_url", "audio_url": {"url": "https://h/a"}}), "messages.0.content.1.audio_url.url"),
        (message({"type": "file", "file": {"file_url": "https://h/a"}}), "messages.0.content.1.file.file_url"),
        (message({"type": "image", "source": {"type": "url", "url": INSIDE}}), "messages.0.content.1.source.url"),
        (message({"type": "image_url", "image_url": None, "uuid": "another's"}), "messages.0.content.1.uuid"),
        (message({"type": "image_url", "image_url": None, "uuid": 7}), "messages.0.content.1.uuid"),
        (message({"type": "image_embeds", "image_embeds": "AAAA"}), "messages.0.content.1.image_embeds"),
        (message({"image_embeds": {"a": "AAAA"}}), "messages.0.content.1.image_embeds"),
        (message({"type": "prompt_embeds", "data": "AAAA"}), "messages.0.content.1.type"),
        ({"chat_template_kwargs": {"a": 1, "tokenize": True}}, "chat_template_kwargs.tokenize"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"video": {"num_frames": 10**6}}}, "media_io_kwargs"),
        ({"kv_transfer_params": {"remote_host": "h"}}, "kv_transfer_params"),
        ({"vllm_xargs": {"kv_transfer_params": 1}}, "vllm_xargs"),
        ({"request_id": "another's"}, "request_id"),
        ({"an_engines_own": 0}, "an_engines_own"),
        ({"x" * 300: 0}, "x" * 100),
    ],
)
def test_what_a_chat_may_not_hold_by_default_is_named(document: Mapping[str, object], param: str) -> None:
    assert refused(document) == param


@pytest.mark.parametrize("field", sorted(ChatCompletionRequest.model_fields))
def test_a_relayed_body_may_hold_the_fields_of_one_that_is_read_and_no_other(field: str) -> None:
    notes = ChatCompletionRequest.model_fields[field].metadata
    is_refused = any(isinstance(note, Only) for note in notes) and field not in {"audio", "modalities"}
    assert refused({field: "something"}) == (field if is_refused or field == "priority" else None)


@pytest.mark.parametrize(
    ("path", "document", "param"),
    [
        (EMBEDDINGS, {"input": "Hello", "dimensions": 8, "encoding_format": "base64", "user": "u"}, None),
        (EMBEDDINGS, {"input": [[1, 2], [3]], "truncate_prompt_tokens": 8}, None),
        (EMBEDDINGS, {"input": ["http://169.254.169.254/"]}, None),  # text, which nobody fetches
        (EMBEDDINGS, message({"type": "image_url", "image_url": {"url": DATA}}), None),
        (
            EMBEDDINGS,
            message({"type": "image_url", "image_url": {"url": INSIDE}}),
            "messages.0.content.1.image_url.url",
        ),
        (EMBEDDINGS, {"messages": [[{"content": [{"image_url": INSIDE}]}]]}, "messages.0.0.content.0.image_url"),
        (EMBEDDINGS, {"input": [{"role": "user", "content": [{"image_url": INSIDE}]}]}, "input.0.content.0.image_url"),
        (EMBEDDINGS, {"input": "x", "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        (EMBEDDINGS, {"input": "x", "priority": 0}, "priority"),
        ("/v1/rerank", {"query": "q", "documents": ["a", "b"], "top_n": 1}, None),
        (
            "/v1/rerank",
            {"query": "q", "documents": [{"content": [{"type": "image_url", "image_url": {"url": INSIDE}}]}]},
            "documents.0.content.0.image_url.url",
        ),
        ("/v1/score", {"text_1": "a", "text_2": ["b"]}, None),
        ("/v1/score", {"queries": {"content": [{"video_url": INSIDE}]}}, "queries.content.0.video_url"),
        ("/v1/other", {"instructions": "x"}, "instructions"),
        ("/v1/responses", {"instructions": "x", "input": [], "background": False}, None),
        ("/v1/responses", {"input": [], "background": True}, "background"),
        ("/v1/messages", {"system": "x", "messages": [], "max_tokens": 5}, None),
        ("/v1/messages", {"messages": [], "mcp_servers": [{"url": INSIDE}]}, "mcp_servers"),
        (
            "/v1/messages",
            {"messages": [{"content": [{"source": {"type": "url", "url": INSIDE}}]}]},
            "messages.0.content.0.source.url",
        ),
        ("/v1/chat/completions/batch", {"messages": [[{"content": "x"}]], "max_tokens": 5}, None),
        ("/v1/chat/completions/batch", {"documents": []}, "documents"),
        (TEXT, {"prompt": ["a", "b"], "max_tokens": 5, "logprobs": 2, "suffix": ""}, None),
        (TEXT, {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
        ("/tokenize", {"prompt": "a"}, None),
        ("/tokenize", {"messages": [], "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": [1]}, None),
    ],
)
def test_what_other_bodies_may_hold(path: str, document: Mapping[str, object], param: str | None) -> None:
    assert refused(document, path) == param


def test_an_operator_allows_fields_by_name() -> None:
    allow = AllowSettings(fields=frozenset({"chat_template", "uuid", "image_embeds", "input", "tools"}))
    assert refused({"chat_template": "x"}, allow=allow) is None
    assert refused(message({"image_url": None, "uuid": "mine"}), allow=allow) is None
    assert refused(message({"type": "image_embeds", "image_embeds": "AAAA"}), allow=allow) is None
    assert refused({"chat_template_kwargs": {"tokenize": True}}, allow=allow) == "chat_template_kwargs.tokenize"
    assert refused({"documents": []}, allow=allow) == "documents"
    # A field that goes on only because an operator allows it may hold anything.
    image = {"type": "input_image", "image_url": INSIDE}
    assert refused({"input": [{"content": [image]}]}, "/v1/responses", allow) == "input.0.content.0.image_url"
    assert refused({"tools": [{"type": "mcp", "server_url": INSIDE}]}, "/v1/responses", allow) == "tools.0.server_url"


MEDIA = frozenset({
    "data", "https://images.example.com", "https://kept.example.com", "http://10.0.0.7:8080", "http://[fd00::1]",
})  # fmt: skip


@pytest.mark.parametrize(
    "url",
    [
        "data:,x", "https://images.example.com", "https://images.example.com/a.png?b=c#d",
        "https://images.example.com?http://h", "HTTPS://Images.Example.COM/a", "https://images.example.com:443/a",
        "http://10.0.0.7:8080/a", "http://[FD00::1]:80/a", "https://images.example.com/ü@evil",
    ],
)  # fmt: skip
def test_an_engine_may_fetch_what_is_named(url: str) -> None:
    assert may_fetch(url, MEDIA)


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example.com/a", "https://images.example.com:8443/a", "https://images.example.com:0443/a",
        "https://images.example.com:/a", "https://images.example.com./a", "https://images.example.com.evil.example/a",
        "https://evil.example/images.example.com", "https://a.images.example.com/a",
        "https://user@images.example.com/a", "https://images.example.com@evil.example/a",
        "https://evil.example\\@images.example.com/a", "https://images.example.com\\@evil.example/a",
        "https://images.example.com%2eevil.example/a", "https://images.example.com\t.evil.example/a",
        "https://images.example.com /a", " https://images.example.com/a", "\thttps://images.example.com/a",
        "https:images.example.com/a", "https:///images.example.com/a", "https://\u017fmages.example.com/a",
        "https://\u212aept.example.com/a",  # the sign for kelvin, whose small letter is k
        "http://10.0.0.7/a", "http://10.7:8080/a", "http://012.0.0.7:8080/a", "http://[::ffff:10.0.0.7]:8080/a",
        "http://[fd00:0::1]/a", "http://localhost/", "file:///etc/passwd", "/etc/passwd", "datax:,x", " data:,x",
        "da\nta:,x", "data", "", pytest.param("a" * 10**6, id="long"),
    ],
)  # fmt: skip
def test_an_engine_may_fetch_nothing_else(url: str) -> None:
    assert not may_fetch(url, MEDIA)


def test_a_scheme_that_is_named_stands_for_all_of_its_hosts() -> None:
    assert may_fetch("https://any.example/x", {"https"})
    assert not may_fetch("http://any.example/x", {"https"})
    assert may_fetch("file:///srv/a.png", {"file"})


RULES = {"vllm": DEFAULT, "other": AllowSettings(fields=frozenset({"documents"})), "eyes": None}
ODD: dict[str, object] = {"documents": [], "chat_template": "x"}


def test_a_body_goes_to_those_that_may_get_it() -> None:
    assert find_barred({"model": "m"}, CHAT, RULES, None) == frozenset()
    assert find_barred({"documents": []}, CHAT, RULES, None) == {"vllm"}
    assert find_barred(ODD, CHAT, RULES, None) == {"vllm", "other"}
    assert find_barred(ODD, CHAT, RULES, "eyes") == {"vllm", "other"}
    assert find_barred(ODD, CHAT, RULES, "a backend that takes no bodies") == {"vllm", "other"}
    assert find_barred(ODD, CHAT, {"eyes": None}, None) == frozenset()
    assert find_barred(ODD, CHAT, {}, None) == frozenset()


@pytest.mark.parametrize(
    ("rules", "pin", "param"),
    [
        ({"vllm": DEFAULT}, None, "documents"),
        ({name: RULES[name] for name in ("vllm", "other")}, None, "documents"),
        (RULES, "vllm", "documents"),
        (RULES, "other", "chat_template"),
    ],
)
def test_a_body_that_nobody_may_get_is_refused(
    rules: Mapping[str, AllowSettings | None], pin: str | None, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_barred(ODD, CHAT, rules, pin)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("document", "sequences"),
    [
        ({}, 1),
        ({"n": None, "best_of": None}, 1),
        ({"n": 3}, 3),
        ({"n": MAX_SEQUENCES}, MAX_SEQUENCES),
        ({"n": 2, "best_of": 5}, 5),
        ({"prompt": "a", "n": 2}, 2),
        ({"prompt": ["a", "b", "c"], "n": 2}, 6),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": []}, 1),
    ],
)
def test_choices_are_counted(document: dict[str, object], sequences: int) -> None:
    assert count_sequences(document) == sequences


@pytest.mark.parametrize("field", ["n", "best_of"])
@pytest.mark.parametrize("count", [100_000, MAX_SEQUENCES + 1, 0, -1, 2.0, 1e5, "100000", True, [3], {}], ids=repr)
def test_choices_that_cannot_be_counted_are_refused(field: str, count: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        count_sequences({field: count})
    assert caught.value.param == field


@pytest.mark.parametrize(
    "document",
    [
        {"messages": orjson.loads(b"[" * 1000 + b'{"url":"x"}' + b"]" * 1000)},
        {"messages": [orjson.loads(b"[" * 1000 + b"]" * 1000) for _ in range(199)]},
        {"messages": [{"content": ["x"] * 199_000}]},
    ],
    ids=["deep", "deep and wide", "wide"],
)
def test_a_hostile_shape_takes_no_longer_than_its_parts(document: Mapping[str, object]) -> None:
    """Against as many plain steps in the same run: 200,000 parts are all that a body has."""
    started = time.process_time()
    sum(len(str(number)) for number in range(200_000))
    plain = time.process_time() - started
    started = time.process_time()
    refused(document)
    assert time.process_time() - started < 60 * plain

"""What no engine is asked: fields that are wrong, unknown or not supported, each by its name."""

from collections.abc import Mapping
from dataclasses import replace

from tests.parity.case import Case, Refused, assistant, chat, text, user
from tests.reference_world import GET_WEATHER

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
GUIDE, JSON = {"regex": "a"}, {"type": "json_object"}
CONTEXT = "context_length_exceeded"


def wrong(field: str, value: object, param: str | None = None, *, why: str = "") -> Case:
    """A chat that is refused for one field."""
    return _refuse(chat(f"refused: {field}{_tell(why)}", "hi"), {field: value}, param or field)


def wrong_text(field: str, value: object, *, why: str = "") -> Case:
    return _refuse(text(f"refused completion: {field}{_tell(why)}", "hi"), {field: value}, field)


def _tell(why: str) -> str:
    return f", {why}" if why else ""


def _refuse(case: Case, fields: Mapping[str, object], param: str) -> Case:
    return replace(case, body={**case.body, **fields}, expected=Refused(param))


CASES: tuple[Case, ...] = (
    chat("refused: an unknown model", "hi", Refused("model", "model_not_found", 404), model="nobody"),
    wrong("frequency", 1.0, why="unknown"),
    wrong("temperature", 2.5, why="too high"),
    wrong("temperature", "1", why="a string"),
    wrong("temperature", -0.1, why="below 0"),
    wrong("top_p", 0, why="0"),
    wrong("top_p", 1.1, why="above 1"),
    wrong("top_k", -2, why="below -1"),
    wrong("min_p", 1.5, why="above 1"),
    wrong("presence_penalty", 2.1, why="too high"),
    wrong("frequency_penalty", -2.1, why="too low"),
    wrong("repetition_penalty", 0, why="0"),
    wrong("seed", 2**63, why="too great"),
    wrong("seed", 1.5, why="broken"),
    wrong("n", 0, why="0"),
    wrong("n", 129, why="too many"),
    wrong("n", True, why="a boolean"),
    wrong("max_tokens", 0, why="0"),
    wrong("max_completion_tokens", 0, why="0"),
    wrong("min_tokens", 25, why="more than max_tokens"),
    wrong("min_tokens", -1, why="below 0"),
    wrong("stop", "", why="empty"),
    wrong("stop", ["a", "b", "c", "d", "e"], why="five"),
    wrong("stop", [""], "stop.0", why="an empty one"),
    wrong("stop", 7, why="a number"),
    wrong("stop_token_ids", [1024], why="outside the vocabulary"),
    wrong("stop_token_ids", [-1], "stop_token_ids.0", why="below 0"),
    wrong("logit_bias", {"1024": 1}, why="outside the vocabulary"),
    wrong("logit_bias", {"5": 101}, "logit_bias.5", why="too great"),
    wrong("logit_bias", {"a": 1}, why="not an id"),
    wrong("ignore_eos", "yes", why="a string"),
    wrong("logprobs", 1, why="a number in a chat"),
    wrong("top_logprobs", 2, why="without logprobs"),
    chat("refused: top_logprobs, too many", "hi", Refused("top_logprobs"), logprobs=True, top_logprobs=21),
    wrong("messages", [], why="empty"),
    wrong("messages", "hi", why="a string"),
    wrong("messages", [{"role": "wizard", "content": "hi"}], "messages.0.role", why="an unknown role"),
    wrong("messages", [{"role": "user"}], "messages.0.content", why="no content"),
    wrong("messages", [user([{"type": "video", "video": 1}])], "messages.0.content.0.type", why="an unknown part"),
    wrong("messages", [user("hi") | {"mood": "good"}], "messages.0.mood", why="an unknown field"),
    wrong("tools", [], why="empty"),
    wrong("tools", [{"type": "function"}], "tools.0.function", why="no function"),
    wrong("tool_choice", "required", why="without tools"),
    chat("refused: tool_choice, unknown", "hi", Refused("tool_choice"), tools=[GET_WEATHER], tool_choice="perhaps"),
    chat(
        "refused: tool_choice, nobody's name",
        "hi",
        Refused("tool_choice.function.name"),
        tools=[GET_WEATHER],
        tool_choice={"type": "function", "function": {"name": "nobody"}},
    ),
    wrong("response_format", {"type": "xml"}, "response_format.type", why="an unknown type"),
    wrong("response_format", {"type": "json_schema"}, "response_format.json_schema", why="no schema"),
    wrong("chat_template", "{{ messages }}"),
    chat(
        "refused: continue_final_message and a generation prompt",
        "hi",
        Refused("add_generation_prompt"),
        continue_final_message=True,
        add_generation_prompt=True,
    ),
    wrong("web_search_options", {}),
    wrong("functions", [{"name": "f"}]),
    wrong("function_call", "auto"),
    wrong("verbosity", "low"),
    wrong("moderation", {"model": "m"}),
    wrong("documents", [{"text": "hi"}]),
    wrong("include_reasoning", False),
    wrong("echo", True, why="in a chat"),
    wrong("prompt_logprobs", 1),
    wrong("use_beam_search", True),
    wrong("length_penalty", 0.5),
    wrong("allowed_token_ids", [5]),
    wrong("bad_words", ["hi"]),
    wrong("truncate_prompt_tokens", 5),
    wrong("return_tokens_as_token_ids", True),
    wrong("chat_template_kwargs", {"chat_template": "{{ messages }}"}, why="a template"),
    wrong("reasoning_effort", "endless", why="unknown"),
    wrong("structured_outputs", {}, why="none"),
    wrong("structured_outputs", {"regex": "a", "choice": ["b"]}, why="two"),
    wrong("structured_outputs", {"structural_tag": "{}"}, "structured_outputs.structural_tag", why="a tag"),
    chat("refused: two guides", "hi", Refused("structured_outputs"), structured_outputs=GUIDE, response_format=JSON),
    chat("refused: tools and a guide", "hi", Refused("response_format"), tools=[GET_WEATHER], response_format=JSON),
    wrong("messages", [{"role": "function", "name": "f", "content": "hi"}], "messages.0.role", why="a function's"),
    wrong("messages", [assistant(None, function_call={})], "messages.0.function_call", why="a function call"),
    wrong("messages", [{"role": "tool", "content": "hi"}], "messages.0.tool_call_id", why="a result of nothing"),
    wrong(
        "messages",
        [assistant(None, tool_calls=[CALL])],
        "messages.0.tool_calls.0.function.arguments",
        why="arguments that are no JSON",
    ),
    chat("refused: too long", "hi " * 1100, Refused("messages", CONTEXT)),
    chat("refused: max_tokens, beyond the context", "hi", Refused("max_tokens", CONTEXT), max_tokens=1020),
    wrong_text("prompt", None, why="null"),
    wrong_text("prompt", [], why="empty"),
    wrong_text("prompt", 5, why="a number"),
    wrong_text("suffix", "end"),
    wrong_text("best_of", 2, why="more than n"),
    wrong_text("logprobs", 6, why="too many"),
    wrong_text("logprobs", -1, why="below 0"),
    wrong_text("max_tokens", 0, why="without echo"),
    wrong_text("messages", [user("hi")], why="in a completion"),
    wrong_text("priority", -1),
    wrong_text("prompt_logprobs", 1),
    wrong_text("use_beam_search", True),
    wrong_text("length_penalty", 0.5),
    wrong_text("allowed_token_ids", [5]),
    wrong_text("bad_words", ["hi"]),
    wrong_text("truncate_prompt_tokens", 5),
    wrong_text("return_tokens_as_token_ids", True),
    text("refused completion: an unknown model", "hi", Refused("model", "model_not_found", 404), model="nobody"),
    text("refused completion: an id outside the vocabulary", [5, 1024], Refused("prompt")),
    text("refused completion: too long", [5] * 1024, Refused("prompt", CONTEXT)),
)

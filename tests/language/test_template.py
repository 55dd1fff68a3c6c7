"""Chats are rendered as by transformers' `apply_chat_template`, and refusals carry the template's message."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gateway.errors import InvalidRequest
from gateway.language import ModelLanguage
from gateway.language.template import ChatTemplate, Rendering
from tests.language.small_models import Model

Chat = list[dict[str, Any]]  # Any: JSON values

QUESTION = {"role": "user", "content": "What is 2 < 3 && \u00e9?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [None, True, 2.5, "\u00fc"]}}}
YES = {"role": "assistant", "content": "Yes."}
CHATS: Mapping[str, Chat] = {
    "question": [QUESTION],
    "system": [{"role": "system", "content": " Be brief. "}, QUESTION, YES, QUESTION],
    "null fields": [{"role": "user", "content": "hello", "name": None, "tool_calls": None}],
    "tool call": [QUESTION, {"role": "assistant", "content": "calling", "tool_calls": [CALL]}],
    "reasoning": [QUESTION, {**YES, "reasoning": "two is less"}, QUESTION],
    "thinking": [QUESTION, {**YES, "thinking": "two is less"}, QUESTION],
    "reasoning by two names": [QUESTION, {**YES, "thinking": "t", "reasoning_content": "r"}],
    "spaces": [{"role": "user", "content": "\n\n  lines \n"}],
}
TEMPLATES = {
    "everything": (
        "{{ messages | tojson }}{{ add_generation_prompt }}{{ tools is none }}{{ documents is none }}{{ bos_token }}"
    ),
    "sorted": "{% for m in messages %}{{ m | tojson(indent=2, sort_keys=True) }}{% endfor %}{{ eos_token }}",
    "control": (
        "{%- set ns = namespace(last='') -%}\n{% for m in messages %}\n"
        "  {% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "    {{- m['content'] | trim }}{% set ns.last = m.role %}\n{% endfor %}\n{{ ns.last }}{{ dict(a=1) }}"
    ),
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "reasoning": (
        "{% for m in messages %}{{ m.reasoning_content or '-' }}{{ m.thinking or '-' }}{{ m.reasoning or '-' }}"
        "{% endfor %}"
    ),
}


TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": None, "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "now", "description": "Returns \u00fc.", "parameters": None}},
]
WITH_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="session")
def tokenizer(byte_level: Model) -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(byte_level.directory)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    loaded.bos_token = "<|endoftext|>"
    return loaded


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
def test_chat_is_rendered_as_by_transformers(tokenizer: PreTrainedTokenizerFast, template: str, chat: str) -> None:
    tokenizer.chat_template = TEMPLATES[template]
    theirs = tokenizer.apply_chat_template(CHATS[chat], tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(tokenizer).render(CHATS[chat]) == theirs


@pytest.mark.parametrize("template", [*TEMPLATES.values(), WITH_TOOLS])
@pytest.mark.parametrize("adds", [False, True])
def test_tools_and_variables_are_rendered_as_by_transformers(
    tokenizer: PreTrainedTokenizerFast, template: str, adds: bool
) -> None:
    tokenizer.chat_template = template + "{{ enable_thinking }}{{ bos_token }}"
    variables: dict[str, Any] = {"enable_thinking": False, "bos_token": "<mine>"}
    theirs = tokenizer.apply_chat_template(
        CHATS["tool call"], tools=TOOLS, tokenize=False, add_generation_prompt=adds, **variables
    )
    rendering = Rendering(tools=TOOLS, add_generation_prompt=adds, variables=variables)
    assert ChatTemplate(tokenizer).render(CHATS["tool call"], rendering) == theirs


CONTINUED: Mapping[str, Chat] = {
    "plain": [QUESTION, {"role": "assistant", "content": "Yes, be"}],
    "spaces": [QUESTION, {"role": "assistant", "content": "Yes, be "}],
    "only spaces": [QUESTION, {"role": "assistant", "content": "  "}],
    "said before": [{"role": "user", "content": "Yes"}, {"role": "assistant", "content": "Yes"}],
    "the mark itself": [QUESTION, {"role": "assistant", "content": "CONTINUE_FINAL_MESSAGE_TAG then"}],
    "a user": [{"role": "user", "content": "Once upon"}],
}


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}",
        "{% for m in messages %}<{{ m.role }}> {{ m.content | trim }} </{{ m.role }}>\n{% endfor %}",
        "{% for m in messages %}{{ m.content.rstrip() }}\n{% endfor %}{{ messages[0].content }}",
    ],
)
@pytest.mark.parametrize("chat", CONTINUED)
def test_last_message_is_left_open_as_by_transformers(
    tokenizer: PreTrainedTokenizerFast, template: str, chat: str
) -> None:
    tokenizer.chat_template = template
    theirs = tokenizer.apply_chat_template(CONTINUED[chat], tokenize=False, continue_final_message=True)
    rendering = Rendering(add_generation_prompt=False, continue_final_message=True)
    assert ChatTemplate(tokenizer).render(CONTINUED[chat], rendering) == theirs


def test_template_that_drops_the_last_message_cannot_continue_it(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ messages[0].content }}"
    with pytest.raises(InvalidRequest, match="continued") as refusal:
        ChatTemplate(tokenizer).render(CONTINUED["plain"], Rendering(continue_final_message=True))
    assert refusal.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "role"),
    [("{{ messages[0].role }}", "system"), ("{{ messages[0].role }}{% if m == 'developer' %}{% endif %}", "developer")],
)
def test_developer_is_system_where_a_template_knows_no_developer(
    tokenizer: PreTrainedTokenizerFast, template: str, role: str
) -> None:
    tokenizer.chat_template = template
    assert ChatTemplate(tokenizer).render([{"role": "developer", "content": "x"}]) == role


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        (WITH_TOOLS, True),
        ("{{ messages[0].content }}", False),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}x", False),
        ({"default": "x", "tool_use": WITH_TOOLS}, True),
        ({"default": "x", "rag": WITH_TOOLS}, False),
        (None, False),
    ],
)
def test_template_that_ignores_tools_is_known(tokenizer: PreTrainedTokenizerFast, template: Any, takes: bool) -> None:
    tokenizer.chat_template = template
    assert ChatTemplate(tokenizer).takes_tools is takes


def test_model_with_a_template_for_tools_uses_it_for_them(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = {"default": "D", "tool_use": "T"}
    template = ChatTemplate(tokenizer)
    assert (template.render([QUESTION]), template.render([QUESTION], Rendering(tools=TOOLS))) == ("D", "T")
    assert template.source == "T"


def test_variables_that_break_a_template_are_the_clients_mistake(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception }}{{ x | tojson }}"
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for variables in ({"x": deep}, {"range": 1, "raise_exception": 2, "x": object()}):
        with pytest.raises(InvalidRequest, match="cannot render"):
            ChatTemplate(tokenizer).render([QUESTION], Rendering(variables=variables))


def test_messages_are_left_as_they_were(tokenizer: PreTrainedTokenizerFast) -> None:
    before = json.dumps(CHATS)
    tokenizer.chat_template = TEMPLATES["everything"]
    for chat in CHATS.values():
        ChatTemplate(tokenizer).render(chat)
    assert json.dumps(CHATS) == before


@pytest.mark.parametrize(
    "expression", ["messages.append(1)", "messages[0].update(a=1)", "messages.__class__.__mro__[1]"]
)
def test_template_stays_in_its_sandbox(tokenizer: PreTrainedTokenizerFast, expression: str) -> None:
    tokenizer.chat_template = "{{ " + expression + " }}"
    with pytest.raises(InvalidRequest, match="chat template"):
        ChatTemplate(tokenizer).render([QUESTION])


def test_model_with_several_templates_uses_its_default(byte_level: Model, tmp_path: Path) -> None:
    assert render_with(byte_level, tmp_path, {"default": "D", "tool_use": "T"}) == [*byte_level.encode("D")]


def test_model_with_several_templates_and_no_default_has_none_for_chats(byte_level: Model, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no chat template"):
        render_with(byte_level, tmp_path, {"rag": "R", "tool_use": "T"})


def render_with(model: Model, directory: Path, templates: Mapping[str, str]) -> Sequence[int]:
    shutil.copytree(model.directory, directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["chat_template"] = [{"name": name, "template": template} for name, template in templates.items()]
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return list(ModelLanguage.load(directory).render_chat([QUESTION]).token_ids)

"""A mutant for every field of docs/api.md, docs/messages.md and docs/responses.md, made from their tables.

One that is honoured is checked and then not heeded, one without effect is refused, one that is refused is dropped in
silence. Not here: `model`, `messages` and `prompt`, without which there is no request (openai.py).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import InvalidRequest
from tests.mutants.mutant import ROOT, Mutant, Replacement

PAGE = (ROOT / "docs/api.md").read_text()
OWN_PAGES = {name: (ROOT / f"docs/{name}.md").read_text() for name in ("messages", "responses")}
SECTIONS = ("Honoured", "No effect", "Refused")
REQUIRED = {"model", "messages", "prompt", "input"}
PARSE = "gateway.wire.body:parse_body"

DOCUMENTED = "tests/openai/test_docs.py::test_the_documented_value_of_a_refused_field_passes_and_no_other"
FIELDS = "tests/openai/test_fields.py::test_"
CHATS = "tests/openai/test_chat_body.py::test_"
CALLS = "tests/openai/test_calls_and_reasoning.py::test_"
STREAMS = "tests/serving/test_chat.py::test_"
SHOWN = "tests/serving/test_logprobs.py::test_"

SAMPLED = f"{FIELDS}sampling_fields_reach_the_engine_request"
BAD_COMPLETION = f"{FIELDS}a_bad_completion_field_is_named"
# Where an honoured field shows, if not in SAMPLED.
SEEN: Mapping[str, str] = {
    "max_completion_tokens": f"{FIELDS}max_completion_tokens_is_the_newer_name_of_max_tokens",
    "n": f"{FIELDS}limits_may_be_met_exactly",
    "stream": f"{STREAMS}a_streamed_answer",
    "stream_options": f"{STREAMS}a_streamed_answer",
    "echo": f"{SHOWN}an_echo_begins_with_the_prompt_and_its_log_probabilities",
    "tools": f"{CALLS}calls_that_a_model_writes_become_tool_calls",
    "tool_choice": f"{CALLS}the_call_of_a_named_function_ends_with_stop",
    "parallel_tool_calls": f"{CALLS}calls_beyond_the_one_allowed_are_left_out",
    "reasoning_effort": f"{CALLS}a_template_may_have_opened_the_reasoning",
    "include_stop_str_in_output": f"{FIELDS}ends_and_special_tokens_are_seen_where_they_are_asked_for",
    "skip_special_tokens": f"{FIELDS}ends_and_special_tokens_are_seen_where_they_are_asked_for",
    "return_token_ids": f"{SHOWN}tokens_after_a_stop_string_are_left_out",
    "cache_salt": f"{FIELDS}a_cache_salt_reaches_an_engine_that_heeds_it",
    "structured_outputs": f"{FIELDS}a_guide_has_so_many_characters",
    "add_special_tokens": f"{FIELDS}a_completions_special_tokens_may_be_left_out",
    "add_generation_prompt": f"{CHATS}a_template_gets_whether_the_assistants_header_follows",
    "continue_final_message": f"{CHATS}the_last_message_may_be_continued",
    "chat_template_kwargs": f"{CHATS}a_template_gets_the_variables_that_vllms_gets",
}
# Where a refusal shows, if not where those of most fields do.
NAMED: Mapping[str, str] = {
    "suffix": BAD_COMPLETION,
    "audio": f"{FIELDS}what_only_the_relay_lane_can_serve_goes_on_unread",
}


def list_fields(section: str) -> Iterator[tuple[str, str]]:
    """Each field of one of the SECTIONS, and its endpoint: both, chat or completions."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    yield from re.findall(r"^\| `(\w+)` \| (both|chat|completions) \|", text, re.MULTILINE)


def unheeded(field: str) -> Replacement:
    def mutate(was: Any) -> Any:  # Any: parse_body, of any body
        def parse(body_type: Any, document: dict[str, object], unknown: Any = "refuse") -> Any:
            body = was(body_type, document, unknown)
            if field not in body.model_fields_set:
                return body
            heeded = {name: getattr(body, name) for name in body.model_fields_set - {field}}
            return body_type.model_construct(**heeded)

        return parse

    return mutate


def refused(field: str) -> Replacement:
    def mutate(was: Any) -> Any:  # Any: as above
        def parse(body_type: Any, document: dict[str, object], unknown: Any = "refuse") -> Any:
            if document.get(field) is not None:
                raise InvalidRequest(f"'{field}' is not supported.", param=field)
            return was(body_type, document, unknown)

        return parse

    return mutate


def dropped(field: str) -> Replacement:
    def mutate(was: Any) -> Any:  # Any: as above
        return lambda body_type, document, unknown="refuse": was(
            body_type, {key: document[key] for key in document if key != field}, unknown
        )

    return mutate


def _make_mutants() -> Iterator[Mutant]:
    honoured, no_effect, refusals = map(list_fields, SECTIONS)
    for field, endpoint in honoured:
        if field == "best_of":  # it does nothing but be equal to `n`
            yield Mutant(f"`{field}` of {endpoint} is checked", PARSE, dropped(field), (BAD_COMPLETION,))
        elif field not in REQUIRED:
            tests = (SEEN.get(field, SAMPLED),)
            yield Mutant(f"`{field}` of {endpoint} is honoured", PARSE, unheeded(field), tests)
    for field, endpoint in no_effect:
        tests = (f"{FIELDS}a_field_without_effect_reaches_neither_engine_nor_template",)
        yield Mutant(f"`{field}` of {endpoint} is taken, and has no effect", PARSE, refused(field), tests)
    for field, endpoint in refusals:
        tests = (NAMED.get(field, DOCUMENTED),)
        yield Mutant(f"`{field}` of {endpoint} is refused", PARSE, dropped(field), tests)


OWN = {
    "messages": "tests/anthropic/test_messages_body.py::test_a_field_of_messages_",
    "responses": "tests/openai/test_responses_body.py::test_a_field_of_responses_",
}

RESPONSES = "tests/openai/test_responses_body.py::test_"
OWN_SEEN = {
    "previous_response_id": f"{RESPONSES}previous_response_id_puts_that_conversation_first",
    "store": f"{RESPONSES}store_false_keeps_nothing",
    "truncation": f"{RESPONSES}truncation_drops_as_few_of_the_first_turns_as_it_must",
}


def _make_own(endpoint: str) -> Iterator[Mutant]:
    honoured, no_effect, refusals = (_list_own(section, endpoint) for section in SECTIONS)
    for field in honoured:
        if field not in REQUIRED:
            tests = (OWN_SEEN.get(field, f"{OWN[endpoint]}is_honoured"),)
            yield Mutant(f"`{field}` of {endpoint} is honoured", PARSE, unheeded(field), tests)
    for field in no_effect:
        tests = (f"{OWN[endpoint]}has_no_effect",)
        yield Mutant(f"`{field}` of {endpoint} is taken, and has no effect", PARSE, refused(field), tests)
    for field in refusals:
        yield Mutant(f"`{field}` of {endpoint} is refused", PARSE, dropped(field), (DOCUMENTED,))


def _list_own(section: str, endpoint: str) -> list[str]:
    text = OWN_PAGES[endpoint].split(f"\n## {section}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


MUTANTS = (*_make_mutants(), *(mutant for endpoint in OWN for mutant in _make_own(endpoint)))

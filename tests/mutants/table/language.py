"""A model's text: stop strings, characters, special tokens, templates, the context, tool calls, reasoning."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gateway.core import Prompt
from gateway.language.tool_json import NotACall
from tests.mutants.mutant import Mutant, returns

MODEL = "gateway.language.model:ModelLanguage"
MATCHER = "gateway.language.stop_strings:StopMatcher"
GUIDE = "gateway.language.tool_guide"

DECODED = "tests/language/test_decoder.py::test_"
SHOWN = "tests/language/test_detokenizer.py::test_"
CALLED = "tests/language/test_tool_calls.py::test_"
GUIDED = "tests/language/test_tool_guide.py::test_"
LOADED = "tests/language/test_model.py::test_"
HEARD = "tests/openai/test_calls_and_reasoning.py::test_"


def feed_without_memory(was: Any) -> Any:  # Any: a method of StopMatcher
    def feed(self: Any, text: str, *, may_match: bool = True) -> str:
        shown: str = was(self, text, may_match=may_match)
        return shown if self.matched is not None else shown + self.flush()

    return feed


def lose_what_is_no_call(_was: Any) -> Any:  # Any: a reader of calls
    def read(_text: object, _writer: object, reading: Iterator[None]) -> Iterator[None]:
        with suppress(NotACall):
            yield from reading

    return read


MUTANTS = (
    Mutant("a stop string is found over the borders of pieces", f"{MATCHER}.feed", feed_without_memory,
        ("tests/language/test_stop_strings.py::test_text_is_cut_before_the_stop_string_wherever_it_is_split",)),
    Mutant("a stop string waits for min_tokens", f"{MATCHER}.feed",
        lambda was: lambda self, text, **_may_match: was(self, text),
        (f"{DECODED}stop_string_is_matched_only_in_tokens_after_min_tokens",)),
    Mutant("a character of several tokens is shown whole", "gateway.language.detokenizer:ByteDetokenizer.feed",
        lambda _was: lambda self, token_id: self._spelling.spell(token_id).decode(errors="replace"),
        (f"{SHOWN}characters_split_into_single_bytes_come_out_whole",)),
    Mutant("special tokens are not shown", "gateway.language.vocabulary:_special_tokens", returns({}),
        (f"{SHOWN}special_tokens_show_nothing_but_added_tokens_do",)),
    Mutant("prompt and answer fit the context", f"{MODEL}.fit",
        lambda _was: lambda self, _prompt, max_tokens, **_params: max_tokens or self.context_length,
        (f"{LOADED}a_prompt_that_does_not_fit_is_refused_with_its_numbers",)),
    Mutant("a prompt's ids outside the vocabulary are refused", f"{MODEL}.prompt_from_ids",
        lambda _was: lambda _self, token_ids: Prompt(tuple(token_ids) or (0,)),
        (f"{LOADED}ids_outside_the_vocabulary_are_refused",)),
    Mutant("tool calls are found in the text", "gateway.language.reply_parser:make_parser",
        lambda was: lambda _tool_format, **how: was(None, **how),
        (f"{HEARD}calls_that_a_model_writes_become_tool_calls",)),
    Mutant("what only looks like a tool call is content", "gateway.language.tool_calls:_or_content",
        lose_what_is_no_call, (f"{CALLED}answer_has_the_same_parts_wherever_it_is_cut",)),
    Mutant("one tool call at a time is part of the guide", f"{GUIDE}:_make_schema",
        lambda was: lambda tools, forced, tool_format, **_parallel: was(tools, forced, tool_format, parallel=True),
        (f"{GUIDED}calls_that_may_not_be_parallel_are_one",)),
    Mutant("a call that has to be made begins in the prompt", "gateway.wire.tool_plan:ToolPlan.opening", returns(""),
        (f"{HEARD}a_call_that_has_to_be_made_begins_in_the_prompt_as_the_model_begins_one",)),
    Mutant("a call that has to be made ends the reasoning before it", f"{MODEL}._close_reasoning",
        lambda _was: lambda _self, text: text,
        (f"{HEARD}a_call_that_has_to_be_made_begins_in_the_prompt_as_the_model_begins_one",)),
    Mutant("a tool's references lead to its own definitions in the guide", f"{GUIDE}:_move",
        lambda _was: lambda schema, _place: schema, (f"{GUIDED}references_lead_to_the_tools_own_definitions",)),
    Mutant("reasoning is kept apart from the content", "gateway.language.reply_parser:make_parser",
        lambda was: lambda tool_format, *, forced=None, **_reasoning: was(tool_format, forced=forced),
        (f"{HEARD}reasoning_has_a_field_of_its_own",)),
    Mutant("reasoning that the template has opened is reasoning", f"{MODEL}.starts_in_reasoning", returns(False),
        (f"{HEARD}a_template_may_have_opened_the_reasoning",)),
)  # fmt: skip

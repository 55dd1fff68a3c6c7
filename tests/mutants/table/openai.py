"""OpenAI's API between a body and an engine's request, and between an engine's tokens and the answer's bytes."""

from dataclasses import replace

from gateway.core import NO_NEEDS
from gateway.errors import InvalidRequest
from gateway.openai.frames import DONE
from tests.mutants.mutant import Mutant, changes, returns

TRANSLATE = "gateway.wire.translate"
RULES = "gateway.serving.relay_rules"

FIELDS = "tests/openai/test_fields.py::test_"
CHATS = "tests/openai/test_chat_body.py::test_"
RELAYED = "tests/openai/test_relay_rules.py::test_"
CHOICES = "tests/serving/test_choices.py::test_"
ERRORS = "tests/serving/test_errors.py::test_"

MUTANTS = (
    Mutant("`model` names one that is served, any other is a 404", "gateway.openai.models:unknown_model",
        returns(InvalidRequest("There is no such model.", param="model")),
        (f"{ERRORS}bad_input_is_named_and_reaches_no_engine",)),
    Mutant("`messages` are all in the prompt", "gateway.language.template:ChatTemplate.render",
        lambda was: lambda self, messages, *how, **named: was(self, messages[-1:], *how, **named),
        (f"{CHATS}tools_and_calls_are_in_the_prompt",)),
    Mutant("`prompt` may be a list, which keeps its order", "gateway.openai.completions:CompletionRequest.prompts",
        changes(lambda prompts: prompts[::-1]),
        (f"{FIELDS}a_completion_prompt_may_be_text_or_ids_alone_or_in_a_list",)),
    Mutant("fields that contradict each other are refused", "gateway.openai.generation:Generation.check", returns(None),
        (f"{FIELDS}fields_that_contradict_each_other_are_refused",)),
    Mutant("what only some engines can do is known as a need, with the field that asks for it",
        "gateway.wire.body:Body.needs", returns(NO_NEEDS),
        (f"{FIELDS}a_body_needs_what_it_asks_for_by_the_field_that_asks",)),
    Mutant("a temperature too small to divide by reaches no engine", f"{TRANSLATE}:_settle",
        lambda _was: lambda params: params,
        (f"{FIELDS}a_temperature_too_small_to_divide_by_is_replaced",)),
    Mutant("the choices of one prompt have different seeds", f"{TRANSLATE}:_reseed",
        lambda _was: lambda params, _choice: params,
        (f"{FIELDS}a_seed_is_followed_by_its_successors",)),
    Mutant("all choices of a request count when it is placed", f"{TRANSLATE}:_requests",
        changes(lambda requests: (replace(request, sequences=1) for request in requests)),
        (f"{CHOICES}all_choices_are_in_flight_on_one_backend_until_the_last_one_ends",)),
    Mutant("a body with a picture goes on unread", "gateway.openai.messages:find_relayed_part", returns(None),
        (f"{FIELDS}what_only_the_relay_lane_can_serve_goes_on_unread",)),
    Mutant("usage counts the tokens of all choices", "gateway.wire.answer:ChoiceGroup.close",
        changes(lambda usage: usage and replace(usage, completion_tokens=1)),
        (f"{CHOICES}choices_are_in_order_and_their_tokens_counted_each_prompt_once",)),
    Mutant("log-probabilities and ids after a stop string are not shown", "gateway.wire.choice:NotingDecoder.feed",
        lambda _was: lambda self, token_ids: (self._details.show(token_ids), self._decoder.feed(token_ids))[1],
        ("tests/serving/test_logprobs.py::test_tokens_after_a_stop_string_are_left_out",)),
    Mutant("no [DONE] follows an error in a stream", "gateway.openai.errors:error_event",
        changes(lambda event: event + DONE), (f"{ERRORS}an_error_after_two_tokens_of_a_stream_is_its_last_event",)),
    Mutant("an engine fetches no URL that its operator has not named", f"{RULES}:may_fetch", returns(True),
        (f"{RELAYED}what_a_chat_may_not_hold_by_default_is_named",)),
    Mutant("a field that an operator has not named does not go on", f"{RULES}:_judge_field", returns(None),
        (f"{RELAYED}what_a_chat_may_not_hold_by_default_is_named",)),
    Mutant("a body goes to no backend that may not get it", f"{RULES}:find_barred", returns(frozenset()),
        (f"{RELAYED}a_body_goes_to_those_that_may_get_it",)),
    Mutant("the choices of a body that goes on unread are counted", f"{RULES}:count_sequences", returns(1),
        (f"{RELAYED}choices_are_counted",)),
)  # fmt: skip

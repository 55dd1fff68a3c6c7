"""The engines' wires: what is asked, how an answer ends, which errors mean what, what an engine may not do."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gateway.core import FinishReason
from gateway.errors import BackendError, GatewayError
from tests.mutants.mutant import Mutant, becomes, changes, reads, returns

CALL = "gateway.backends.calls:LiveCall"
TENSORS = "gateway.backends.triton_tensors"
JSON = "gateway.backends.vllm_json"
RELAY = "gateway.backends.relay"

CALLED = "tests/backends/test_calls.py::test_"
TRITON = "tests/backends/test_triton.py::test_"
VLLM = "tests/backends/test_vllm.py::test_"
RELAYED = "tests/backends/test_relay.py::test_"
ABLE = "tests/backends/test_capabilities.py::test_"


def with_params(**changed: object) -> Any:  # Any: a Replacement of LiveCall's constructor
    return lambda was: (
        lambda self, calls, sink, params, answer: was(self, calls, sink, replace(params, **changed), answer)
    )


def end_as_if_nothing_had_come(was: Any) -> Any:  # Any: a method of LiveCall
    def end(self: Any, end: object) -> None:
        if isinstance(end, GatewayError):
            self._delivered = 0
        was(self, end)

    return end


def without(name: str) -> Any:  # Any: a Replacement of a function that yields tensors
    def drop(tensors: Iterable[Any]) -> list[Any]:
        return [tensor for tensor in tensors if tensor[0] != name]

    return changes(drop)


MUTANTS = (
    # Every wire
    Mutant("an engine that sends too many tokens is cut off", f"{CALL}.__init__", with_params(max_tokens=1 << 40),
        (f"{CALLED}tokens_beyond_max_tokens_are_not_passed_on",)),
    Mutant("an engine that ends too early has not answered", f"{CALL}.__init__", with_params(ignore_eos=False),
        (f"{CALLED}an_end_that_comes_too_early_is_a_protocol_error",)),
    Mutant("an engine that is lost after a token is no reason to try elsewhere", f"{CALL}._end",
        end_as_if_nothing_had_come, (f"{CALLED}unavailable_becomes_an_error_once_tokens_went_out",)),
    Mutant("an engine that is silent for too long is given up", f"{CALL}.sweep", returns(None),
        (f"{CALLED}being_held_up_ourselves_is_not_taken_for_an_engines_silence",)),
    Mutant("no engine is asked for min_tokens where nothing can end its answer early",
        "gateway.core:SamplingParams.binding_min_tokens", lambda _was: property(lambda self: self.min_tokens),
        (f"{TRITON}where_nothing_can_end_the_answer_early_no_min_tokens_are_sent",)),
    Mutant("the operator corrects what a backend can do", "gateway.backends.capabilities:apply_overrides",
        lambda _was: lambda own, overrides: own, (f"{ABLE}the_operators_settings_override_a_backends_own_needs",)),
    # Triton
    Mutant("Triton gets a top_p, or its engine is greedy", f"{TENSORS}:_sampling", without("runtime_top_p"),
        (f"{TRITON}a_plain_request_is_sampled_with_a_top_p_of_one_and_a_drawn_seed",)),
    Mutant("Triton gets a seed that was drawn where the client has none", f"{TENSORS}:_sampling",
        lambda was: lambda params: was(replace(params, seed=params.seed or 0)),
        (f"{TRITON}unseeded_requests_do_not_share_a_seed",)),
    Mutant("Triton gets no temperature of zero", f"{TENSORS}:_sampling",
        lambda was: lambda params: was(replace(params, temperature=params.temperature or 1.0)),
        (f"{TRITON}greedy_is_a_top_k_of_one_without_temperature_top_p_or_seed",)),
    Mutant("Triton gets every end but the first as a stop word", f"{TENSORS}:_stop_ids", returns(()),
        (f"{TRITON}stop_ids_are_one_token_words_each_once_and_never_the_end_id",)),
    Mutant("Triton is never asked for log-probabilities, which crash its engine", f"{TENSORS}:_tensors",
        changes(lambda tensors: [*tensors, ("return_log_probs", "BOOL", (1, 1), b"\1")]),
        (f"{TRITON}log_probabilities_are_never_asked_for",)),
    Mutant("Triton's answers end for the reason that their ids show", f"{TENSORS}:TensorReader._add_end",
        lambda _was: lambda _self, token_ids: (token_ids, FinishReason.STOP), (f"{TRITON}ends_are_inferred",)),
    Mutant("Triton's ids outside the vocabulary are a protocol error", f"{TENSORS}:TensorReader.__init__",
        lambda was: lambda self, peer, request, id_limit=0: was(self, peer, request),
        (f"{TRITON}an_id_outside_the_vocabulary_is_a_protocol_error",)),
    Mutant("Triton's errors in band are told apart by their text", f"{TENSORS}:inband_error",
        returns(BackendError("It failed.")), (f"{TRITON}inband_errors_end_the_answer_by_their_text",)),
    Mutant("Triton's refusal of what its engine does not support is known as one", f"{TENSORS}:need_refused",
        returns(None), (f"{TRITON}refused_need_is_recognised_by_the_beginning_of_the_engines_words",)),
    # vLLM
    Mutant("vLLM gets every sampling parameter, or its generation_config.json fills them in",
        f"{JSON}:_sampling_fields",
        changes(lambda sampling: {name: value for name, value in sampling.items() if value}),
        (f"{VLLM}every_value_that_a_generation_config_could_change_is_written_out",)),
    Mutant("vLLM gets the model's end tokens as stop tokens", f"{JSON}:_stop_token_ids",
        lambda _was: lambda request: [*request.params.stop_token_ids],
        (f"{VLLM}stop_ids_hold_every_end_id_once_and_none_when_the_end_is_ignored",)),
    Mutant("vLLM's ids outside the vocabulary are a protocol error", f"{JSON}:EventReader.__init__",
        lambda was: lambda self, peer, request, vocab_size=0, if_refused=None: was(
            self, peer, request, if_refused=if_refused),
        (f"{VLLM}an_id_outside_the_vocabulary_is_a_protocol_error",)),
    Mutant("vLLM's refusals are told apart by status and text", f"{JSON}:error_of_answer",
        returns(BackendError("It failed.")), (f"{VLLM}refusals",)),
    Mutant("vLLM without its token route is asked on the other one", "gateway.backends.vllm:ROUTE_OFF_STATUSES",
        becomes(frozenset()), (f"{VLLM}without_a_probe_the_first_call_falls_back_and_the_next_knows",)),
    # Relayed answers
    Mutant("an error that a relayed engine reports first is a status", f"{RELAY}:_read_error", returns(None),
        (f"{RELAYED}an_error_that_comes_first_is_a_status",)),
    Mutant("a relayed engine's usage is counted", f"{RELAY}:RelayedAnswer.usage", reads((0, 0)),
        (f"{RELAYED}an_answer_is_the_same_however_its_reads_are_cut",)),
)  # fmt: skip

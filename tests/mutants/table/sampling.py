"""What an engine is asked to generate, and when an answer ends."""

from tests.mutants.mutant import Mutant

ANSWER = "gateway/api/answer.py"
ASK = "gateway/api/ask.py"
CALLS = "gateway/backends/calls.py"
CALL_TO_TRITON = "gateway/backends/triton.py"
CALL_TO_VLLM = "gateway/backends/vllm.py"
CHAT = "gateway/api/chat.py"
COMPLETIONS = "gateway/api/completions.py"
CORE = "gateway/core.py"
DECODER = "gateway/language/decoder.py"
FLEET = "gateway/routing/fleet.py"
FORM = "gateway/api/form.py"
FRAMES = "gateway/api/frames.py"
GENERATION = "gateway/api/generation.py"
LANE = "gateway/api/token_lane.py"
LANGUAGE = "gateway/language/model.py"
MATCHER = "gateway/language/stop_strings.py"
OPERATORS_WORD = "gateway/backends/needs.py"
REFUSAL = "gateway/routing/needs.py"
TRITON = "gateway/backends/triton_tensors.py"
TRITON_CONFIG = "gateway/backends/triton_config.py"
VLLM = "gateway/backends/vllm_json.py"
VOCABULARY = "gateway/language/vocabulary.py"

PENALTIES = "repetition_penalty presence_penalty frequency_penalty"
FIELDS = "tests/api/test_fields.py"
RANGE = f"{FIELDS}::test_a_range_ends_where_it_is_said_to"
BAD_CHAT = f"{FIELDS}::test_a_bad_chat_field_is_named_as_the_client_wrote_it"
BAD_COMPLETION = f"{FIELDS}::test_a_bad_completion_field_is_named"
TRANSLATED = f"{FIELDS}::test_sampling_fields_reach_the_engine_request"
DEFAULTS = f"{FIELDS}::test_defaults_are_openais_but_for_max_tokens_which_is_all_the_room"
CONTRADICTION = f"{FIELDS}::test_fields_that_contradict_each_other_are_refused"
TOO_LONG = f"{FIELDS}::test_what_does_not_fit_the_context_is_refused"
NEWER_NAME = f"{FIELDS}::test_max_completion_tokens_is_the_newer_name_of_max_tokens"
SMALL_TEMPERATURES = f"{FIELDS}::test_temperatures_too_small_to_divide_by_are_settled_here"
NEEDS = f"{FIELDS}::test_a_body_needs_what_it_asks_for_by_the_field_that_asks"
NO_NEEDS = f"{FIELDS}::test_values_that_ask_for_nothing_are_let_through"
ASKED_TO_SEE = f"{FIELDS}::test_what_a_body_asks_to_see"
SEEN = f"{FIELDS}::test_ends_and_special_tokens_are_seen_where_they_are_asked_for"
WHOLE_RANGE = f"{FIELDS}::test_limits_may_be_met_exactly"

CHOICES = "tests/api/test_choices.py"
SEEDS = f"{CHOICES}::test_a_seed_is_followed_by_its_successors_and_none_by_none"
STOP_IN_A_CHAT = "tests/api/test_chat.py::test_a_stop_string_over_token_borders_ends_the_answer_and_the_engine_call"
ABLE = "tests/api/test_headers.py::test_what_one_engine_cannot_do_goes_to_the_other_and_is_refused_where_none_can"
TRIED_ELSEWHERE = "tests/api/test_retry.py::test_what_an_engine_turns_out_not_to_support_is_answered_by_one_that_does"
REFUSED_BY_NAME = "tests/routing/test_needs.py::test_what_no_backend_can_do_is_a_bad_request_that_names_the_field"

TO_TRITON = "tests/backends/test_triton.py"
PLAIN_TO_TRITON = f"{TO_TRITON}::test_a_plain_request_is_sampled_with_a_top_p_of_one_and_a_drawn_seed"
GIVEN_TO_TRITON = f"{TO_TRITON}::test_given_sampling_values_are_sent"
GREEDY_TO_TRITON = f"{TO_TRITON}::test_greedy_is_a_top_k_of_one_without_temperature_top_p_or_seed"
LOW_PENALTIES_TO_TRITON = f"{TO_TRITON}::test_penalties_may_reward"
SEEDS_TO_TRITON = f"{TO_TRITON}::test_given_seeds_are_sent_and_negative_ones_wrapped"
NOT_TO_TRITON = f"{TO_TRITON}::test_what_the_engine_reads_from_no_tensor_is_not_sent"
BIAS_TO_TRITON = f"{TO_TRITON}::test_a_bias_is_a_number_for_every_logit"
MIN_TOKENS_TO_TRITON = f"{TO_TRITON}::test_with_min_tokens_no_stop_word_is_sent_for_the_engine_would_obey_it_too_early"
STOP_IDS_TO_TRITON = f"{TO_TRITON}::test_stop_ids_are_one_token_words_each_once_and_never_the_end_id"
REFUSED_BY_TRITON = f"{TO_TRITON}::test_refused_need_is_recognised_by_the_beginning_of_the_engines_words"
NO_END_TO_TRITON = f"{TO_TRITON}::test_ignoring_the_end_sends_no_end_id_and_no_end_as_stop_word"
NO_EARLY_END_TO_TRITON = f"{TO_TRITON}::test_where_nothing_can_end_the_answer_early_no_min_tokens_are_sent"
TRITON_WATCHED = f"{TO_TRITON}::test_with_min_tokens_a_stop_token_ends_the_answer_once_they_are_out"
TRITON_WATCHED_ALIKE = f"{TO_TRITON}::test_with_min_tokens_a_stop_token_is_seen_in_a_response_like_those_before"
TRITON_ENDS = f"{TO_TRITON}::test_ends_are_inferred"

TO_VLLM = "tests/backends/test_vllm.py"
PLAIN_TO_VLLM = f"{TO_VLLM}::test_every_value_that_a_generation_config_could_change_is_written_out"
GIVEN_TO_VLLM = f"{TO_VLLM}::test_given_values_are_sent_as_they_are"
EXTENSIONS_TO_VLLM = f"{TO_VLLM}::test_min_p_bias_and_priority_are_sent_on_either_route"
STOP_IDS_TO_VLLM = f"{TO_VLLM}::test_stop_ids_hold_every_end_id_once_and_none_when_the_end_is_ignored"
NO_EARLY_END_TO_VLLM = f"{TO_VLLM}::test_where_nothing_can_end_the_answer_early_no_min_tokens_are_sent"

CAPABILITIES = "tests/backends/test_capabilities.py"
TRITON_IS_ABLE = f"{CAPABILITIES}::test_a_triton_model_can_do_what_its_configuration_declares"
VLLM_IS_ABLE = f"{CAPABILITIES}::test_vllm_can_do_all_but_what_needs_a_flag"
LOST = f"{CAPABILITIES}::test_what_the_engine_refuses_is_lost_until_the_server_has_been_away"

DECODED = "tests/language/test_decoder.py"
END_IS_HIDDEN = f"{DECODED}::test_eos_counts_and_shows_nothing"
END_IS_SHOWN = f"{DECODED}::test_end_token_is_seen_only_where_special_tokens_are_and_it_is_part_of_the_answer"
STOP_TOKEN_IS_HIDDEN = f"{DECODED}::test_stop_token_that_is_plain_text_shows_nothing"
STOP_TOKEN_IS_SHOWN = f"{DECODED}::test_stop_token_may_be_part_of_the_answer"
STOP_TOKEN_WAITS = f"{DECODED}::test_stop_token_before_min_tokens_is_part_of_the_answer"
STOP_STRING_ENDS = f"{DECODED}::test_stop_string_ends_the_answer_and_later_tokens_do_not_count"
STOP_STRING_IS_SHOWN = f"{DECODED}::test_stop_string_may_be_part_of_the_answer"
STOP_STRING_WAITS = f"{DECODED}::test_stop_string_is_matched_only_in_tokens_after_min_tokens"
AFTER_THE_END = f"{DECODED}::test_ids_after_the_end_neither_count_nor_show_and_ask_for_a_stop"
SPECIAL_IS_SHOWN = f"{DECODED}::test_special_tokens_are_seen_where_they_are_asked_for"
SPECIAL_IS_SHOWN_BY_ANY = f"{DECODED}::test_special_tokens_show_as_the_library_shows_them"
CUT_ANYWHERE = "tests/language/test_stop_strings.py::test_text_is_cut_before_the_stop_string_wherever_it_is_split"


def changed(fields: str, where: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(tuple(fields.split()), where, old, new, (test,))


def moved(field: str, kind: str, bounds: str, *others: str) -> list[Mutant]:
    """The bounds of a body's field, each elsewhere in turn."""
    before = f"{field}: Annotated[{kind}, Field("
    return [changed(field, GENERATION, f"{before}{bounds})", f"{before}{other})", RANGE) for other in others]


def dropped(field: str, where: str, line: str, test: str) -> Mutant:
    """The line that hands a value on."""
    return changed(field, where, f"        {line}\n", "", test)


MUTANTS = [
    # max_tokens
    *moved("max_tokens", "int", "ge=1", "ge=0", "ge=2"),
    changed(
        "max_tokens echo",
        COMPLETIONS,
        "    echo: bool = False\n",
        "    echo: bool = False\n    max_tokens: Annotated[int, Field(ge=0)] | None = None\n",
        BAD_COMPLETION,
    ),
    changed("max_tokens", LANGUAGE, "return room if max_tokens is None", "return 16 if max_tokens is None", DEFAULTS),
    changed(
        "max_tokens",
        COMPLETIONS,
        "    echo: bool = False\n",
        "    echo: bool = False\n    max_tokens: Annotated[int, Field(ge=1)] | None = 16\n",
        f"{FIELDS}::test_each_prompt_of_a_list_has_its_own_room_and_the_same_seed",
    ),
    changed("max_tokens", LANGUAGE, "if max_tokens is not None and max_tokens > room:", "if False:", TOO_LONG),
    changed(
        "max_tokens",
        LANGUAGE,
        "max_tokens is not None and max_tokens > room",
        "max_tokens is not None and max_tokens >= room",
        f"{FIELDS}::test_the_last_token_of_the_context_may_be_asked_for",
    ),
    changed("max_tokens", LANGUAGE, "return room if max_tokens is None else max_tokens", "return room", TRANSLATED),
    changed(
        "max_tokens",
        ASK,
        "_fit_max_tokens(body, language, prompt)",
        "_fit_max_tokens(body, language, prompts[0])",
        f"{FIELDS}::test_each_prompt_of_a_list_has_its_own_room_and_the_same_seed",
    ),
    changed(
        "max_tokens",
        TRITON,
        '"request_output_len", params.max_tokens',
        '"request_output_len", len(prompt) + params.max_tokens',
        PLAIN_TO_TRITON,
    ),
    changed("max_tokens", TRITON, "self._total >= self._max_tokens or self._end_id", "self._end_id", TRITON_ENDS),
    dropped("max_tokens", VLLM, '"max_tokens": params.max_tokens,', PLAIN_TO_VLLM),
    # max_completion_tokens
    changed(
        "max_completion_tokens",
        CHAT,
        "max_completion_tokens: Annotated[int, Field(ge=1)]",
        "max_completion_tokens: Annotated[int, Field(ge=0)]",
        RANGE,
    ),
    changed("max_completion_tokens", CHAT, "if self.max_completion_tokens is None:", "if True:", NEWER_NAME),
    changed(
        "max_completion_tokens max_tokens",
        ASK,
        "if body.max_tokens is not None and body.max_tokens != limit:",
        "if False:",
        CONTRADICTION,
    ),
    changed(
        "max_completion_tokens max_tokens",
        ASK,
        "body.max_tokens != limit",
        'field != "max_tokens"',
        NEWER_NAME,
    ),
    changed("max_completion_tokens", ASK, "max_tokens_param=field", 'max_tokens_param="max_tokens"', TOO_LONG),
    # n
    *moved("n", "int", "ge=1, le=MOST_SEQUENCES", "ge=0, le=MOST_SEQUENCES", "ge=2, le=MOST_SEQUENCES", "ge=1"),
    changed("n", GENERATION, "MOST_SEQUENCES = 128", "MOST_SEQUENCES = 127", RANGE),
    changed("n prompt", COMPLETIONS, "if sequences > MOST_SEQUENCES:", "if False:", BAD_COMPLETION),
    changed("n prompt", COMPLETIONS, "if sequences > MOST_SEQUENCES:", "if sequences >= MOST_SEQUENCES:", WHOLE_RANGE),
    changed("n prompt", COMPLETIONS, "self.n * len(self._each())", "len(self._each())", BAD_COMPLETION),
    changed(
        "n",
        ASK,
        "for choice in range(body.n):",
        "for choice in range(1):",
        f"{CHOICES}::test_n_choices_in_order_with_one_prompt_and_all_their_tokens_counted",
    ),
    changed(
        "n usage",
        FRAMES,
        "self._completion_tokens += completion_tokens",
        "self._completion_tokens = completion_tokens",
        f"{CHOICES}::test_n_choices_in_order_with_one_prompt_and_all_their_tokens_counted",
    ),
    changed(
        "n usage",
        ASK,
        "prompt_tokens=sum(map(len, prompts)),",
        "prompt_tokens=body.n * sum(map(len, prompts)),",
        f"{CHOICES}::test_n_choices_in_order_with_one_prompt_and_all_their_tokens_counted",
    ),
    changed(
        "n",
        ASK,
        "sequences=sequences,",
        "",
        f"{CHOICES}::test_the_choices_of_a_request_count_when_it_is_placed",
    ),
    changed(
        "n",
        FLEET,
        "sequences=request.sequences",
        "sequences=1",
        f"{CHOICES}::test_all_choices_are_in_flight_on_one_backend_until_the_last_one_ends",
    ),
    changed(
        "n",
        LANE,
        "for index in range(self._left):",
        "for index in range(1):",
        f"{CHOICES}::test_all_choices_are_in_flight_on_one_backend_until_the_last_one_ends",
    ),
    # best_of
    changed("best_of", COMPLETIONS, 'if best_of != info.data.get("n", best_of):', "if False:", BAD_COMPLETION),
    changed(
        "best_of",
        COMPLETIONS,
        'best_of != info.data.get("n", best_of)',
        "best_of != 1",
        f"{FIELDS}::test_best_of_may_equal_n",
    ),
    changed(
        "best_of",
        COMPLETIONS,
        'best_of != info.data.get("n", best_of)',
        'best_of > info.data.get("n", best_of)',
        BAD_COMPLETION,
    ),
    # temperature
    *moved("temperature", "float", "ge=0, le=2", "le=2", "gt=0, le=2", "ge=0", "ge=0, lt=2"),
    changed("temperature", GENERATION, "Field(ge=0, le=2)] = 1.0", "Field(ge=0, le=2)] = 0.7", DEFAULTS),
    changed("temperature", ASK, "GREEDY_BELOW = 1e-5", "GREEDY_BELOW = 1e-6", SMALL_TEMPERATURES),
    changed(
        "temperature", ASK, "if temperature < GREEDY_BELOW:", "if temperature <= GREEDY_BELOW:", SMALL_TEMPERATURES
    ),
    changed("temperature", ASK, "LOWEST_TEMPERATURE = 0.01", "LOWEST_TEMPERATURE = 0.001", SMALL_TEMPERATURES),
    changed(
        "temperature", ASK, "return max(temperature, LOWEST_TEMPERATURE)", "return temperature", SMALL_TEMPERATURES
    ),
    dropped("temperature", ASK, "temperature=_settle_temperature(body.temperature),", TRANSLATED),
    changed("temperature", TRITON, "if params.temperature == 0:", "if False:", GREEDY_TO_TRITON),
    changed("temperature", TRITON, 'yield _int32("runtime_top_k", 1)', "yield from ()", GREEDY_TO_TRITON),
    changed(
        "temperature",
        TRITON,
        'yield _float32("temperature", params.temperature)',
        'yield _float32("temperature", 1.0)',
        GIVEN_TO_TRITON,
    ),
    changed(
        "temperature",
        TRITON,
        'yield _float32("temperature", params.temperature)',
        'if params.temperature != 1:\n        yield _float32("temperature", params.temperature)',
        PLAIN_TO_TRITON,
    ),
    dropped("temperature", VLLM, '"temperature": params.temperature,', PLAIN_TO_VLLM),
    changed(
        "temperature",
        VLLM,
        '"temperature": params.temperature',
        '"temperature": params.temperature or 1.0',
        f"{TO_VLLM}::test_greedy_is_a_temperature_of_zero",
    ),
    # top_p
    *moved("top_p", "float", "gt=0, le=1", "ge=0, le=1", "gt=0", "gt=0, lt=1"),
    changed("top_p", GENERATION, "Field(gt=0, le=1)] = 1.0", "Field(gt=0, le=1)] = 0.95", DEFAULTS),
    dropped("top_p", ASK, "top_p=body.top_p,", TRANSLATED),
    changed(
        "top_p",
        TRITON,
        'yield _float32("runtime_top_p", params.top_p)',
        'if params.top_p < 1:\n        yield _float32("runtime_top_p", params.top_p)',
        PLAIN_TO_TRITON,
    ),
    changed("top_p", TRITON, '"runtime_top_p", params.top_p', '"runtime_top_p", 1.0', GIVEN_TO_TRITON),
    dropped("top_p", VLLM, '"top_p": max(params.top_p, SMALLEST_TOP_P),', PLAIN_TO_VLLM),
    changed("top_p", VLLM, "max(params.top_p, SMALLEST_TOP_P)", "1.0", GIVEN_TO_VLLM),
    # seed
    *moved("seed", "int", "ge=-INT64_END, lt=INT64_END", "lt=INT64_END", "ge=-INT64_END", "ge=0, lt=INT64_END"),
    changed("seed", GENERATION, "INT32_END, INT64_END = 2**31, 2**63", "INT32_END, INT64_END = 2**31, 2**62", RANGE),
    dropped("seed", ASK, "seed=body.seed,", TRANSLATED),
    changed("seed n", ASK, "_reseed(params, choice) if choice else params", "params", SEEDS),
    changed("seed n", ASK, "(params.seed + choice + INT64_END)", "(params.seed + 1 + INT64_END)", SEEDS),
    changed(
        "seed n", ASK, "(params.seed + choice + INT64_END) % UINT64_END - INT64_END", "params.seed + choice", SEEDS
    ),
    changed("seed n", ASK, "if params.seed is None:\n        return params", "if False:\n        return params", SEEDS),
    changed(
        "seed n",
        ASK,
        "_reseed(params, choice) if choice else params",
        "_reseed(params, index) if index else params",
        f"{FIELDS}::test_each_prompt_of_a_list_has_its_own_room_and_the_same_seed",
    ),
    changed(
        "seed",
        TRITON,
        "randbits(63) if params.seed is None",
        "0 if params.seed is None",
        f"{TO_TRITON}::test_unseeded_requests_do_not_share_a_seed",
    ),
    changed("seed", TRITON, "if params.seed is None else", "if not params.seed else", SEEDS_TO_TRITON),
    changed("seed", TRITON, "else params.seed & UINT64_MASK", "else abs(params.seed)", SEEDS_TO_TRITON),
    changed("seed", VLLM, "if params.seed is not None:", "if False:", GIVEN_TO_VLLM),
    changed("seed", VLLM, "if params.seed is not None:", "if params.seed:", f"{TO_VLLM}::test_no_seed_is_no_field"),
    changed(
        "seed",
        VLLM,
        "NEIGHBOUR if params.seed == TAKEN_FOR_NO_SEED else params.seed",
        "params.seed",
        f"{TO_VLLM}::test_a_seed_that_vllm_takes_for_none_is_still_a_seed",
    ),
    # stop
    changed("stop", GENERATION, "Field(max_length=4)", "Field(max_length=5)", RANGE),
    changed("stop", GENERATION, "Field(max_length=4)", "Field(max_length=3)", RANGE),
    changed("stop", GENERATION, "MOST_STOP_CHARACTERS = 4096", "MOST_STOP_CHARACTERS = 4097", RANGE),
    changed("stop", GENERATION, "MOST_STOP_CHARACTERS = 4096", "MOST_STOP_CHARACTERS = 4095", RANGE),
    changed(
        "stop",
        GENERATION,
        "Annotated[NonEmpty, BeforeValidator(_refuse",
        "Annotated[str, BeforeValidator(_refuse",
        RANGE,
    ),
    changed("stop", GENERATION, "(self.stop,) if isinstance(self.stop, str)", "() if isinstance(self.stop, str)", SEEN),
    changed("stop", GENERATION, "tuple(self.stop or ())", "tuple(self.stop or ())[:1]", TRANSLATED),
    dropped("stop", ASK, "stop=body.stop_strings,", TRANSLATED),
    changed("stop", FORM, "            self.stop,\n", "            (),\n", STOP_IN_A_CHAT),
    changed("stop", MATCHER, "end = min(ends)", "end = max(ends)", CUT_ANYWHERE),
    changed("stop", MATCHER, "end = min(ends)", "end = ends[0]", CUT_ANYWHERE),
    changed("stop", MATCHER, "self.held = self._holder.depth", "self.held = 0", CUT_ANYWHERE),
    changed("stop", MATCHER, "(0 if self._keeps_match else len(self.matched))", "0", CUT_ANYWHERE),
    changed("stop", MATCHER, "depth = borders[depth]\n    return", "depth = 0\n    return", CUT_ANYWHERE),
    changed(
        "stop",
        MATCHER,
        '"" if self.matched is not None else self._holder.string[: self.held]',
        '""',
        f"{DECODED}::test_text_held_for_a_stop_string_comes_out_at_the_end",
    ),
    changed(
        "stop",
        DECODER,
        "return self._match(self._detokenizer.flush()) + self._matcher.flush()",
        "return self._detokenizer.flush() + self._matcher.flush()",
        f"{DECODED}::test_stop_string_may_end_in_a_character_that_only_the_end_completes",
    ),
    changed(
        "stop",
        ANSWER,
        "FinishReason.STOP if decoder.stopped else None",
        "FinishReason.LENGTH if decoder.stopped else None",
        "tests/api/test_answer.py::test_a_stop_string_over_token_borders_ends_the_answer",
    ),
    changed(
        "stop",
        ANSWER,
        "if decoder.stopped or not self._is_open:",
        "if not self._is_open:",
        "tests/api/test_answer.py::test_a_stop_string_that_ends_the_answer_after_others_leaves_with_its_end",
    ),
    changed(
        "stop",
        ANSWER,
        "FinishReason.STOP if self._decoder.stopped else reason",
        "reason",
        "tests/api/test_answer.py::test_a_stop_string_that_only_the_end_completes_is_a_stop",
    ),
    changed(
        "stop",
        LANE,
        "observation.end(outcome)\n            call.cancel()",
        "observation.end(outcome)",
        STOP_IN_A_CHAT,
    ),
    changed(
        "stop n",
        LANE,
        "observation.end(FinishReason.STOP)\n        call.cancel()",
        "observation.end(FinishReason.STOP)",
        f"{CHOICES}::test_a_choice_that_met_its_stop_string_leaves_its_engine_while_others_go_on",
    ),
    # presence_penalty
    *moved("presence_penalty", "float", "ge=-2, le=2", "le=2", "gt=-2, le=2", "ge=-2", "ge=-2, lt=2"),
    changed(
        "presence_penalty",
        GENERATION,
        "presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0",
        "presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.1",
        DEFAULTS,
    ),
    changed(
        "presence_penalty",
        ASK,
        "presence_penalty=body.presence_penalty",
        "presence_penalty=body.frequency_penalty",
        TRANSLATED,
    ),
    changed("presence_penalty", TRITON, "if params.presence_penalty:", "if False:", GIVEN_TO_TRITON),
    changed(
        "presence_penalty",
        TRITON,
        "if params.presence_penalty:",
        "if params.presence_penalty > 0:",
        LOW_PENALTIES_TO_TRITON,
    ),
    dropped("presence_penalty", VLLM, '"presence_penalty": params.presence_penalty,', PLAIN_TO_VLLM),
    changed("presence_penalty", VLLM, "params.presence_penalty", "params.frequency_penalty", GIVEN_TO_VLLM),
    # frequency_penalty
    *moved("frequency_penalty", "float", "ge=-2, le=2", "le=2", "gt=-2, le=2", "ge=-2", "ge=-2, lt=2"),
    changed(
        "frequency_penalty",
        GENERATION,
        "frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0",
        "frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.1",
        DEFAULTS,
    ),
    dropped("frequency_penalty", ASK, "frequency_penalty=body.frequency_penalty,", TRANSLATED),
    changed("frequency_penalty", TRITON, "if params.frequency_penalty:", "if False:", GIVEN_TO_TRITON),
    changed(
        "frequency_penalty",
        TRITON,
        "if params.frequency_penalty:",
        "if params.frequency_penalty > 0:",
        LOW_PENALTIES_TO_TRITON,
    ),
    dropped("frequency_penalty", VLLM, '"frequency_penalty": params.frequency_penalty,', PLAIN_TO_VLLM),
    changed("frequency_penalty", VLLM, "params.frequency_penalty", "0.0", GIVEN_TO_VLLM),
    # logit_bias
    changed("logit_bias", GENERATION, "MOST_BIASES = 1024", "MOST_BIASES = 1025", RANGE),
    changed("logit_bias", GENERATION, "MOST_BIASES = 1024", "MOST_BIASES = 1023", RANGE),
    *(
        changed("logit_bias", GENERATION, "Field(ge=-100, le=100)", other, RANGE)
        for other in ("Field(le=100)", "Field(gt=-100, le=100)", "Field(ge=-100)", "Field(ge=-100, lt=100)")
    ),
    changed("logit_bias", GENERATION, "BIASED.fullmatch(key)", "key.isdigit()", BAD_CHAT),
    changed(
        "logit_bias",
        ASK,
        "if max((token_id for token_id, _ in body.bias), default=0) >= language.vocab_size:",
        "if False:",
        CONTRADICTION,
    ),
    changed(
        "logit_bias",
        ASK,
        "in body.bias), default=0) >= language.vocab_size",
        "in body.bias), default=0) >= language.vocab_size - 1",
        WHOLE_RANGE,
    ),
    changed(
        "logit_bias", GENERATION, "(self.logit_bias or {}).items() if bias)", "(self.logit_bias or {}).items())", NEEDS
    ),
    changed("logit_bias", GENERATION, "if self.bias:", "if False:", NEEDS),
    changed("logit_bias", GENERATION, "if self.bias:", "if self.logit_bias is not None:", NO_NEEDS),
    dropped("logit_bias", ASK, "logit_bias=body.bias,", TRANSLATED),
    changed("logit_bias", TRITON, "if params.logit_bias:", "if False:", BIAS_TO_TRITON),
    changed("logit_bias", TRITON, "BIAS.size * token_id, bias", "BIAS.size * token_id, -bias", BIAS_TO_TRITON),
    changed("logit_bias", TRITON, "if token_id < vocab_size:", "if token_id:", BIAS_TO_TRITON),
    changed(
        "logit_bias",
        CALL_TO_TRITON,
        "encode(request, backend.model, call_id, backend.vocab_size)",
        "encode(request, backend.model, call_id)",
        f"{CAPABILITIES}::test_a_bias_has_the_length_that_the_server_declared",
    ),
    changed("logit_bias", TRITON_CONFIG, "if BIAS in inputs and bias_length:", "if bias_length:", TRITON_IS_ABLE),
    changed("logit_bias", TRITON_CONFIG, "if BIAS in inputs and bias_length:", "if False:", TRITON_IS_ABLE),
    changed("logit_bias", VLLM, "if params.logit_bias:", "if False:", EXTENSIONS_TO_VLLM),
    changed("logit_bias", CALL_TO_VLLM, "Need.LOGIT_BIAS, ", "", VLLM_IS_ABLE),
    changed("logit_bias min_p priority", FLEET, "if route.backend not in lacking:", "if True:", ABLE),
    changed("logit_bias min_p priority", FLEET, "if may_have and all(", "if False and all(", ABLE),
    changed(
        "logit_bias min_p priority", FLEET, "self._choose_able if request.needs else self._choose", "self._choose", ABLE
    ),
    changed(
        "logit_bias min_p priority",
        REFUSAL,
        "if not any(need in backend.capabilities for backend in backends):",
        "if False:",
        REFUSED_BY_NAME,
    ),
    changed(
        "logit_bias min_p priority",
        REFUSAL,
        'is not supported by {by}.", param=field)',
        'is not supported by {by}.", param=None)',
        REFUSED_BY_NAME,
    ),
    changed("logit_bias min_p priority", REFUSAL, "param=fields[0])", "param=None)", REFUSED_BY_NAME),
    # top_k
    *moved("top_k", "int", "ge=-1, lt=INT32_END", "lt=INT32_END", "ge=0, lt=INT32_END", "ge=-1"),
    changed("top_k", GENERATION, "Field(ge=-1, lt=INT32_END)] = 0", "Field(ge=-1, lt=INT32_END)] = 50", DEFAULTS),
    dropped("top_k", ASK, "top_k=max(body.top_k, 0),", TRANSLATED),
    changed("top_k", ASK, "max(body.top_k, 0)", "body.top_k", f"{FIELDS}::test_vllms_minus_one_turns_top_k_off"),
    changed("top_k", TRITON, "if params.top_k:", "if False:", GIVEN_TO_TRITON),
    changed("top_k", TRITON, "if params.top_k:", "if True:", PLAIN_TO_TRITON),
    dropped("top_k", VLLM, '"top_k": params.top_k,', PLAIN_TO_VLLM),
    changed("top_k", VLLM, "params.top_k", "0", GIVEN_TO_VLLM),
    # min_p
    *moved("min_p", "float", "ge=0, le=1", "le=1", "gt=0, le=1", "ge=0", "ge=0, lt=1"),
    changed("min_p", GENERATION, "Field(ge=0, le=1)] = 0.0", "Field(ge=0, le=1)] = 0.05", DEFAULTS),
    changed("min_p", GENERATION, "if self.min_p:", "if False:", NEEDS),
    changed("min_p", GENERATION, "if self.min_p:", 'if "min_p" in self.model_fields_set:', NO_NEEDS),
    dropped("min_p", ASK, "min_p=body.min_p,", TRANSLATED),
    changed(
        "min_p",
        TRITON,
        "    if params.top_k:",
        '    yield _float32("runtime_min_p", params.min_p)\n    if params.top_k:',
        NOT_TO_TRITON,
    ),
    changed(
        "min_p",
        TRITON_CONFIG,
        "    if GUIDE in inputs",
        '    if "runtime_min_p" in inputs:\n        yield Need.MIN_P\n    if GUIDE in inputs',
        TRITON_IS_ABLE,
    ),
    dropped("min_p", VLLM, '"min_p": params.min_p,', PLAIN_TO_VLLM),
    changed("min_p", VLLM, "params.min_p,", "0.0,", EXTENSIONS_TO_VLLM),
    changed("min_p", CALL_TO_VLLM, "Need.MIN_P, ", "", VLLM_IS_ABLE),
    # repetition_penalty
    *moved("repetition_penalty", "float", "ge=0.01, le=2", "gt=0, le=2", "gt=0.01, le=2", "ge=0.01", "ge=0.01, lt=2"),
    changed("repetition_penalty", GENERATION, "le=2)] = 1.0\n    min_tokens", "le=2)] = 1.1\n    min_tokens", DEFAULTS),
    dropped("repetition_penalty", ASK, "repetition_penalty=body.repetition_penalty,", TRANSLATED),
    changed("repetition_penalty", TRITON, "if params.repetition_penalty != 1:", "if False:", GIVEN_TO_TRITON),
    changed(
        "repetition_penalty",
        TRITON,
        "if params.repetition_penalty != 1:",
        "if params.repetition_penalty > 1:",
        LOW_PENALTIES_TO_TRITON,
    ),
    dropped("repetition_penalty", VLLM, '"repetition_penalty": params.repetition_penalty,', PLAIN_TO_VLLM),
    changed("repetition_penalty", VLLM, "params.repetition_penalty", "1.0", GIVEN_TO_VLLM),
    changed(PENALTIES, GENERATION, "if getattr(self, name) != neutral:", "if False:", NEEDS),
    changed(PENALTIES, GENERATION, "if getattr(self, name) != neutral:", "if True:", NO_NEEDS),
    changed(PENALTIES, TRITON_CONFIG, "if PENALTIES.issubset(inputs):", "if True:", TRITON_IS_ABLE),
    changed(PENALTIES, TRITON_CONFIG, "if PENALTIES.issubset(inputs):", "if PENALTIES & set(inputs):", TRITON_IS_ABLE),
    changed(PENALTIES, CALL_TO_VLLM, "Need.PENALTIES, ", "", VLLM_IS_ABLE),
    changed(f"{PENALTIES} min_tokens", TRITON, "REFUSED_TENSOR.match(text)", "None", REFUSED_BY_TRITON),
    changed(f"{PENALTIES} min_tokens", TRITON, "REFUSED_TENSOR.match(", "REFUSED_TENSOR.search(", REFUSED_BY_TRITON),
    changed(
        f"{PENALTIES} min_tokens",
        TRITON,
        "if need is None or need not in needs:",
        "if need is None:",
        REFUSED_BY_TRITON,
    ),
    changed(f"{PENALTIES} min_tokens", CALL_TO_TRITON, "self._backend.lose(Need(end.need))", "pass", LOST),
    changed(f"{PENALTIES} min_tokens", LANE, "BackendUnavailable | NeedRefused", "BackendUnavailable", TRIED_ELSEWHERE),
    # min_tokens
    *moved("min_tokens", "int", "ge=0", "", "ge=1"),
    changed("min_tokens", ASK, "if body.min_tokens > max_tokens:", "if False:", CONTRADICTION),
    changed("min_tokens", ASK, "if body.min_tokens > max_tokens:", "if body.min_tokens >= max_tokens:", WHOLE_RANGE),
    dropped("min_tokens", ASK, "min_tokens=body.min_tokens,", TRANSLATED),
    changed(
        "min_tokens",
        CORE,
        "return self.min_tokens if can_end_early else 0",
        "return self.min_tokens",
        NO_EARLY_END_TO_VLLM,
    ),
    changed(
        "min_tokens",
        CORE,
        "can_end_early = bool(self.stop_token_ids) or not self.ignore_eos",
        "can_end_early = not self.ignore_eos",
        NO_EARLY_END_TO_VLLM,
    ),
    changed("min_tokens", TRITON, ":= params.binding_min_tokens:", ":= 0:", MIN_TOKENS_TO_TRITON),
    changed("min_tokens", TRITON, ":= params.binding_min_tokens:", ":= params.min_tokens:", NO_EARLY_END_TO_TRITON),
    changed(
        "min_tokens",
        TRITON,
        "elif stop_ids := _stop_ids(request):",
        "if stop_ids := _stop_ids(request):",
        MIN_TOKENS_TO_TRITON,
    ),
    changed("min_tokens", TRITON, "(kept := self._until_stop(token_ids))", "(kept := 0)", TRITON_WATCHED),
    changed("min_tokens", TRITON, " and self._total + position >= self._min_tokens", "", TRITON_WATCHED),
    changed(
        "min_tokens", TRITON, "+ position >= self._min_tokens", "+ position > self._min_tokens", TRITON_WATCHED_ALIKE
    ),
    changed("min_tokens", TRITON, "self.is_cut = not is_final", "self.is_cut = False", TRITON_WATCHED),
    changed(
        "min_tokens",
        CALLS,
        "if self._answer.is_cut:",
        "if False:",
        "tests/backends/test_calls.py::test_an_engine_that_would_go_on_is_left_at_the_end",
    ),
    changed("min_tokens", TRITON, "if self._min_tokens:", "if False:", TRITON_WATCHED_ALIKE),
    dropped("min_tokens", VLLM, '"min_tokens": params.binding_min_tokens,', PLAIN_TO_VLLM),
    changed("min_tokens", VLLM, "params.binding_min_tokens", "0", GIVEN_TO_VLLM),
    changed("min_tokens", VLLM, "params.binding_min_tokens", "params.min_tokens", NO_EARLY_END_TO_VLLM),
    changed(
        "min_tokens", GENERATION, "self.min_tokens and (self.stop_token_ids or not self.ignore_eos)", "False", NEEDS
    ),
    changed("min_tokens", GENERATION, " and (self.stop_token_ids or not self.ignore_eos)", "", NEEDS),
    changed("min_tokens", TRITON_CONFIG, "if MIN_TOKENS in inputs:", "if True:", TRITON_IS_ABLE),
    changed("min_tokens", CALL_TO_VLLM, "Need.MIN_TOKENS,", "", VLLM_IS_ABLE),
    changed("min_tokens", DECODER, " and self.completion_tokens >= self._min_tokens", "", STOP_TOKEN_WAITS),
    changed(
        "min_tokens",
        DECODER,
        "completion_tokens >= self._min_tokens",
        "completion_tokens > self._min_tokens",
        STOP_TOKEN_WAITS,
    ),
    changed(
        "min_tokens stop",
        DECODER,
        "may_match=self.completion_tokens > self._min_tokens",
        "may_match=True",
        STOP_STRING_WAITS,
    ),
    changed(
        "min_tokens stop",
        DECODER,
        "may_match=self.completion_tokens > self._min_tokens",
        "may_match=self.completion_tokens >= self._min_tokens",
        STOP_STRING_WAITS,
    ),
    changed("min_tokens stop", DECODER, "= params.min_tokens", "= params.binding_min_tokens", STOP_STRING_WAITS),
    # ignore_eos
    changed("ignore_eos", GENERATION, "ignore_eos: bool = False", "ignore_eos: bool = True", DEFAULTS),
    dropped("ignore_eos", ASK, "ignore_eos=body.ignore_eos,", TRANSLATED),
    changed("ignore_eos", TRITON, "None if request.params.ignore_eos or not", "None if not", NO_END_TO_TRITON),
    changed(
        "ignore_eos",
        TRITON,
        "() if request.params.ignore_eos else request.eos_token_ids[1:]",
        "request.eos_token_ids[1:]",
        NO_END_TO_TRITON,
    ),
    changed("ignore_eos", TRITON, " or self._end_id is None:", ":", TRITON_ENDS),
    dropped("ignore_eos", VLLM, '"ignore_eos": params.ignore_eos,', PLAIN_TO_VLLM),
    changed("ignore_eos", VLLM, "params.ignore_eos,", "False,", STOP_IDS_TO_VLLM),
    changed(
        "ignore_eos",
        VLLM,
        "() if request.params.ignore_eos else request.eos_token_ids",
        "request.eos_token_ids",
        STOP_IDS_TO_VLLM,
    ),
    changed(
        "ignore_eos",
        DECODER,
        "(() if params.ignore_eos else request.eos_token_ids)",
        "request.eos_token_ids",
        f"{DECODED}::test_ignored_eos_neither_ends_nor_shows",
    ),
    # stop_token_ids
    changed("stop_token_ids", GENERATION, "Field(max_length=128, default", "Field(max_length=129, default", RANGE),
    changed("stop_token_ids", GENERATION, "Field(max_length=128, default", "Field(max_length=127, default", RANGE),
    changed(
        "stop_token_ids prompt",
        GENERATION,
        "Annotated[int, Field(ge=0, lt=INT32_END)]",
        "Annotated[int, Field(lt=INT32_END)]",
        RANGE,
    ),
    changed(
        "stop_token_ids",
        ASK,
        "if max(body.stop_token_ids, default=0) >= language.vocab_size:",
        "if False:",
        CONTRADICTION,
    ),
    changed(
        "stop_token_ids",
        ASK,
        "body.stop_token_ids, default=0) >= language.vocab_size",
        "body.stop_token_ids, default=0) >= language.vocab_size - 1",
        WHOLE_RANGE,
    ),
    dropped("stop_token_ids", ASK, "stop_token_ids=tuple(body.stop_token_ids),", TRANSLATED),
    changed(
        "stop_token_ids", TRITON, "(*other_ends, *request.params.stop_token_ids)", "other_ends", STOP_IDS_TO_TRITON
    ),
    changed(
        "stop_token_ids",
        TRITON,
        "(*other_ends, *request.params.stop_token_ids)",
        "request.params.stop_token_ids",
        STOP_IDS_TO_TRITON,
    ),
    changed("stop_token_ids", TRITON, " if token_id != end_id)", ")", STOP_IDS_TO_TRITON),
    changed(
        "stop_token_ids", TRITON, "elif stop_ids := _stop_ids(request):", "elif stop_ids := ():", STOP_IDS_TO_TRITON
    ),
    changed("stop_token_ids", TRITON, "if self._last_id in self._stop_ids:", "if False:", TRITON_ENDS),
    changed("stop_token_ids", VLLM, "(*end_ids, *request.params.stop_token_ids)", "end_ids", STOP_IDS_TO_VLLM),
    changed(
        "stop_token_ids",
        VLLM,
        "(*end_ids, *request.params.stop_token_ids)",
        "request.params.stop_token_ids",
        STOP_IDS_TO_VLLM,
    ),
    changed("stop_token_ids", DECODER, "params.stop_token_ids + (", "() + (", STOP_TOKEN_IS_HIDDEN),
    # include_stop_str_in_output
    changed(
        "include_stop_str_in_output",
        GENERATION,
        "include_stop_str_in_output: bool = False",
        "include_stop_str_in_output: bool = True",
        ASKED_TO_SEE,
    ),
    changed(
        "include_stop_str_in_output", GENERATION, "return self.include_stop_str_in_output", "return False", ASKED_TO_SEE
    ),
    dropped("include_stop_str_in_output", ASK, "include_stop=body.include_stop,", SEEN),
    dropped("include_stop_str_in_output", FORM, "    include_stop=self.include_stop,", SEEN),
    changed(
        "include_stop_str_in_output",
        LANGUAGE,
        "include_stop=include_stop)",
        "include_stop=False)",
        STOP_STRING_IS_SHOWN,
    ),
    changed(
        "include_stop_str_in_output", DECODER, "keeps_match=include_stop", "keeps_match=False", STOP_STRING_IS_SHOWN
    ),
    changed("include_stop_str_in_output", DECODER, "if not self._include_stop:", "if True:", STOP_TOKEN_IS_SHOWN),
    changed("include_stop_str_in_output", DECODER, "if not self._include_stop:", "if False:", STOP_TOKEN_IS_HIDDEN),
    # skip_special_tokens
    changed(
        "skip_special_tokens",
        GENERATION,
        "skip_special_tokens: bool = True",
        "skip_special_tokens: bool = False",
        ASKED_TO_SEE,
    ),
    changed("skip_special_tokens", GENERATION, "return not self.skip_special_tokens", "return False", ASKED_TO_SEE),
    dropped("skip_special_tokens", ASK, "shows_special=body.shows_special,", SEEN),
    dropped("skip_special_tokens", FORM, "    shows_special=self.shows_special,", SEEN),
    changed("skip_special_tokens", LANGUAGE, "self._special if shows_special else", "", SPECIAL_IS_SHOWN),
    changed(
        "skip_special_tokens",
        LANGUAGE,
        "self._special if shows_special else self._markers if shows_markers else",
        "self._markers if shows_markers else self._special if shows_special else",
        SEEN,
    ),
    changed(
        "skip_special_tokens",
        VOCABULARY,
        "if also_shown else self._spelling)",
        "if False else self._spelling)",
        SPECIAL_IS_SHOWN,
    ),
    changed(
        "skip_special_tokens",
        VOCABULARY,
        "if also_shown else self._shown",
        "if False else self._shown",
        SPECIAL_IS_SHOWN_BY_ANY,
    ),
    changed(
        "skip_special_tokens include_stop_str_in_output",
        DECODER,
        "if not self._include_stop:",
        "if False:",
        END_IS_SHOWN,
    ),
    # priority
    *moved(
        "priority",
        "int",
        "ge=-INT32_END, lt=INT32_END",
        "lt=INT32_END",
        "gt=-INT32_END, lt=INT32_END",
        "ge=-INT32_END",
        "ge=-INT32_END, lt=INT32_END - 1",
    ),
    changed(
        "priority",
        GENERATION,
        "Field(ge=-INT32_END, lt=INT32_END)] = 0",
        "Field(ge=-INT32_END, lt=INT32_END)] = 1",
        DEFAULTS,
    ),
    changed("priority", GENERATION, "if self.priority:", "if False:", NEEDS),
    changed("priority", GENERATION, "if self.priority:", "if self.priority > 0:", NEEDS),
    dropped("priority", ASK, "priority=body.priority,", TRANSLATED),
    changed(
        "priority",
        TRITON,
        "    if params.top_k:",
        '    yield _int32("priority", params.priority)\n    if params.top_k:',
        NOT_TO_TRITON,
    ),
    changed("priority", VLLM, "if request.params.priority:", "if False:", EXTENSIONS_TO_VLLM),
    changed("priority", VLLM, "= request.params.priority\n", "= -request.params.priority\n", EXTENSIONS_TO_VLLM),
    changed(
        "priority", CALL_TO_VLLM, "Need.GUIDE, Need.RELAY,", "Need.GUIDE, Need.RELAY, Need.PRIORITY,", VLLM_IS_ABLE
    ),
    changed("priority", OPERATORS_WORD, "return (own | granted) - denied", "return own - denied", VLLM_IS_ABLE),
    # What `usage` counts up to an end, whatever the engine.
    changed("usage ignore_eos", ASK, "eos_token_ids=language.eos_token_ids,", "eos_token_ids=(),", TRANSLATED),
    changed("usage", DECODER, "(() if params.ignore_eos else request.eos_token_ids)", "()", AFTER_THE_END),
    changed(
        "usage",
        TRITON,
        "return (*token_ids, self._end_id), FinishReason.STOP",
        "return token_ids, FinishReason.STOP",
        TRITON_ENDS,
    ),
    changed(
        "usage",
        DECODER,
        "self._is_over = True\n            if not",
        "self._is_over = True\n            self.completion_tokens -= 1\n            if not",
        END_IS_HIDDEN,
    ),
    changed(
        "usage",
        DECODER,
        "self.stopped = True\n            return",
        "self.stopped = True\n            self.completion_tokens += 1\n            return",
        AFTER_THE_END,
    ),
    changed(
        "usage",
        DECODER,
        "self._is_over = self.stopped = True",
        "self._is_over = self.stopped = True\n            self.completion_tokens -= 1",
        STOP_STRING_ENDS,
    ),
    changed(
        "usage", DECODER, "self.completion_tokens += 1\n                    return text", "return text", END_IS_HIDDEN
    ),
]

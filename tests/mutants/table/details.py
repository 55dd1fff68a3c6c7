"""What an answer shows: log-probabilities, ids, usage, streams, prompts; what the endpoints beside them say; errors."""

from tests.mutants.mutant import Mutant

ANSWER = "gateway/api/answer.py"
ASK = "gateway/api/ask.py"
CHAT = "gateway/api/chat.py"
COMPLETIONS = "gateway/api/completions.py"
DETAILS = "gateway/api/details.py"
DIALECTS = "gateway/api/dialects.py"
DOWNSTREAM = "gateway/api/downstream.py"
ENVELOPE = "gateway/api/envelope.py"
ERRORS = "gateway/api/errors.py"
FIELDS = "gateway/api/fields.py"
FORM = "gateway/api/form.py"
FRAMES = "gateway/api/frames.py"
GENERATION = "gateway/api/generation.py"
INFERENCE = "gateway/api/inference.py"
MODELS = "gateway/api/models.py"
OFFLOAD = "gateway/api/offload.py"
PARSE = "gateway/api/parse.py"
PULSE = "gateway/api/pulse.py"
REPLY = "gateway/api/reply.py"
TOKEN_LANE = "gateway/api/token_lane.py"
TOKENIZE = "gateway/api/tokenize.py"
TURN = "gateway/api/turn.py"
CALLS = "gateway/backends/calls.py"
TRITON = "gateway/backends/triton_tensors.py"
TRITON_CONFIG = "gateway/backends/triton_config.py"
VLLM = "gateway/backends/vllm.py"
VLLM_JSON = "gateway/backends/vllm_json.py"
VLLM_SCORES = "gateway/backends/vllm_scores.py"
TAXONOMY = "gateway/errors.py"
DECODER = "gateway/language/decoder.py"
DETOKENIZER = "gateway/language/detokenizer.py"
LANGUAGE = "gateway/language/model.py"
FLEET = "gateway/routing/fleet.py"
NEEDS = "gateway/routing/needs.py"
SETTINGS_FILE = "gateway/settings/settings.py"
ENGINE_SAMPLING = "engines/reference/sampling.py"

IN_ALIVE = "tests/api/test_keep_alive.py"
IN_ANSWER = "tests/api/test_answer.py"
IN_CHAT = "tests/api/test_chat.py"
IN_CHAT_BODY = "tests/api/test_chat_body.py"
IN_CHOICES = "tests/api/test_choices.py"
IN_DETAILS = "tests/api/test_details.py"
IN_DISCONNECT = "tests/api/test_disconnect.py"
IN_DOCS = "tests/api/test_docs.py"
IN_ERRORS = "tests/api/test_errors.py"
IN_FIELDS = "tests/api/test_fields.py"
IN_FRAMES = "tests/api/test_frames.py"
IN_HEADERS = "tests/api/test_headers.py"
IN_MIXED = "tests/api/test_mixed_lanes.py"
IN_OFFLOAD = "tests/api/test_offload.py"
IN_OUTLET = "tests/api/test_outlet.py"
IN_RELAY_LANE = "tests/api/test_relay_lane.py"
IN_RETRY = "tests/api/test_retry.py"
IN_TOKENIZE = "tests/api/test_tokenize_bodies.py"
IN_CAPABILITIES = "tests/backends/test_capabilities.py"
IN_CONTRACT = "tests/backends/test_contract.py"
IN_TRITON = "tests/backends/test_triton.py"
IN_VLLM = "tests/backends/test_vllm.py"
IN_VLLM_SCORES = "tests/backends/test_vllm_scores.py"
IN_DECODER = "tests/language/test_decoder.py"
IN_DETOKENIZER = "tests/language/test_detokenizer.py"
IN_LANGUAGE = "tests/language/test_model.py"
IN_NEEDS = "tests/routing/test_needs.py"
IN_ENGINE_SAMPLING = "tests/engines/test_sampling.py"
IN_SETTINGS = "tests/settings/test_settings.py"

BAD_CHAT = (f"{IN_FIELDS}::test_a_bad_chat_field_is_named_as_the_client_wrote_it",)
BAD_COMPLETION = (f"{IN_FIELDS}::test_a_bad_completion_field_is_named",)
AT_LIMITS = (f"{IN_FIELDS}::test_the_last_value_that_is_allowed_is_taken",)
WHAT_IS_NEEDED = (f"{IN_FIELDS}::test_a_body_needs_what_it_asks_for_by_the_field_that_asks",)
ABLE_OR_REFUSED = (f"{IN_DETAILS}::test_what_not_every_engine_tells_is_asked_of_one_that_does_or_refused_by_name",)

HONOURED = [
    Mutant(
        ("model",),
        INFERENCE,
        "lane = self._lanes.get(model)\n",
        "lane = self._lanes.get(model) or next(iter(self._lanes.values()))\n",
        (f"{IN_ERRORS}::test_unknown_models_raise_the_clients_own_class",),
    ),
    Mutant(
        ("model",),
        MODELS,
        'does not exist.", param="model")',
        'does not exist.")',
        (f"{IN_ERRORS}::test_unknown_models_raise_the_clients_own_class",),
    ),
    Mutant(("model",), GENERATION, "model: NonEmpty\n", "model: str\n", BAD_CHAT),
    Mutant(("model",), GENERATION, "model: NonEmpty\n", 'model: NonEmpty = "tiny"\n', BAD_CHAT),
    Mutant(
        ("model",),
        ASK,
        "envelope.created, body.model)",
        'envelope.created, "")',
        (f"{IN_CHAT}::test_a_plain_answer",),
    ),
    Mutant(("prompt",), COMPLETIONS, "prompt: CompletionPrompt\n", 'prompt: CompletionPrompt = "x"\n', BAD_COMPLETION),
    Mutant(
        ("prompt",),
        COMPLETIONS,
        "return ID_LISTS.tag if isinstance(first, list) else json_type(prompt)",
        "return json_type(prompt)",
        (f"{IN_FIELDS}::test_a_completion_prompt_may_be_text_or_ids_alone_or_in_a_list",),
    ),
    Mutant(
        ("prompt",),
        COMPLETIONS,
        "    if isinstance(first, str):\n        return TEXTS.tag\n",
        "",
        (f"{IN_FIELDS}::test_a_completion_prompt_may_be_text_or_ids_alone_or_in_a_list",),
    ),
    Mutant(
        ("prompt",),
        COMPLETIONS,
        "else language.prompt_from_ids(prompt)",
        "else language.encode_text(language.decode(prompt))",
        (f"{IN_CHOICES}::test_each_prompt_of_a_list_has_its_own_choices",),
    ),
    Mutant(
        ("prompt",),
        COMPLETIONS,
        "[self.prompt] if is_one else self.prompt)",
        "[self.prompt] if is_one else self.prompt[:1])",
        (f"{IN_FIELDS}::test_several_prompts_keep_their_order",),
    ),
    Mutant(
        ("prompt",), COMPLETIONS, "Annotated[list[str], SEVERAL, TEXTS]", "Annotated[list[str], TEXTS]", BAD_COMPLETION
    ),
    Mutant(
        ("prompt",),
        COMPLETIONS,
        "Annotated[list[TokenIds], SEVERAL, ID_LISTS]",
        "Annotated[list[TokenIds], ID_LISTS]",
        BAD_COMPLETION,
    ),
    Mutant(
        ("prompt",), COMPLETIONS, "Field(max_length=MOST_SEQUENCES,", "Field(max_length=MOST_SEQUENCES - 1,", AT_LIMITS
    ),
    Mutant(("prompt",), COMPLETIONS, "Field(min_length=1, fail_fast=True)", "Field(fail_fast=True)", BAD_COMPLETION),
    Mutant(
        ("prompt",),
        GENERATION,
        "Field(ge=0, lt=INT32_END)]\n\n# Of one",
        "Field(lt=INT32_END)]\n\n# Of one",
        BAD_COMPLETION,
    ),
    Mutant(
        ("prompt",),
        LANGUAGE,
        "if unknown is not None:",
        "if False:",
        (f"{IN_LANGUAGE}::test_ids_outside_the_vocabulary_are_refused",),
    ),
    Mutant(
        ("prompt",),
        ASK,
        "for place, prompt in enumerate(prompts):",
        "for place, prompt in enumerate(prompts[::-1]):",
        (f"{IN_CHOICES}::test_each_prompt_of_a_list_has_its_own_choices",),
    ),
    Mutant(
        ("prompt",),
        ASK,
        "index = place * body.n + choice",
        "index = choice",
        (f"{IN_CHOICES}::test_each_prompt_of_a_list_has_its_own_choices",),
    ),
    Mutant(
        ("prompt",),
        TRITON,
        "*prompt.token_ids)",
        "*prompt.token_ids[::-1])",
        (f"{IN_TRITON}::test_a_plain_request_is_sampled_with_a_top_p_of_one_and_a_drawn_seed",),
    ),
    Mutant(
        ("prompt",),
        TRITON,
        '_int32("input_lengths", len(prompt))',
        '_int32("input_lengths", len(prompt) + 1)',
        (f"{IN_TRITON}::test_a_plain_request_is_sampled_with_a_top_p_of_one_and_a_drawn_seed",),
    ),
    Mutant(
        ("prompt",),
        VLLM_JSON,
        '"token_ids": request.prompt.token_ids,',
        '"token_ids": request.prompt.token_ids[1:],',
        (f"{IN_VLLM}::test_generate_body_asks_for_ids_and_no_text",),
    ),
    Mutant(
        ("prompt",),
        VLLM_JSON,
        '"prompt": request.prompt.token_ids,',
        '"prompt": request.prompt.token_ids[1:],',
        (f"{IN_VLLM}::test_completions_body_asks_for_the_same_and_for_ids_back",),
    ),
    Mutant(("stream",), ASK, "stream=body.stream,", "stream=False,", (f"{IN_CHAT}::test_a_streamed_answer",)),
    Mutant(
        ("stream",),
        GENERATION,
        "stream: bool = False",
        "stream: bool = True",
        (f"{IN_FIELDS}::test_defaults_are_openais_but_for_max_tokens_which_is_all_the_room",),
    ),
    Mutant(
        ("stream", "streams.done"),
        FRAMES,
        r'DONE = b"data: [DONE]\n\n"',
        'DONE = b""',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("stream",),
        FRAMES,
        'b"text/event-stream; charset=utf-8"',
        'b"application/json"',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("stream",),
        FRAMES,
        '        self._parts += self._show.feed(text)\n        return b""',
        "        self._parts += self._show.feed(text)\n        return text.encode()",
        (f"{IN_FRAMES}::test_nothing_is_sent_before_the_end_of_a_folded_answer",),
    ),
    Mutant(
        ("stream_options",),
        ASK,
        "if body.stream_options is not None and not body.stream:",
        "if False:",
        (f"{IN_FIELDS}::test_fields_that_contradict_each_other_are_refused",),
    ),
    Mutant(
        ("stream_options",),
        ASK,
        'is true.", param="stream_options")',
        'is true.", param="stream")',
        (f"{IN_FIELDS}::test_fields_that_contradict_each_other_are_refused",),
    ),
    Mutant(
        ("stream_options", "stream_options.include_usage"),
        ASK,
        "include_usage=body.wants_usage,",
        "include_usage=False,",
        (f"{IN_CHAT}::test_streamed_usage_comes_last_and_counts_ids",),
    ),
    Mutant(
        ("stream_options", "stream_options.include_usage"),
        GENERATION,
        "include_usage: bool = False",
        "include_usage: bool = True",
        (f"{IN_FIELDS}::test_what_a_body_asks_to_see",),
    ),
    Mutant(
        ("stream_options", "stream_options.include_usage", "streams.usage"),
        FRAMES,
        """self._head + b'],"usage":' + usage""",
        """self._before + b'}],"usage":' + usage""",
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("stream_options", "stream_options.include_usage"),
        FRAMES,
        ' if self._include_usage else b""',
        "",
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        ASK,
        "continuous_usage=body.wants_continuous_usage,",
        "continuous_usage=False,",
        (f"{IN_DETAILS}::test_every_chunk_counts_what_was_used_so_far",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        GENERATION,
        "return self.wants_usage and self.stream_options is not None",
        "return self.stream_options is not None",
        (f"{IN_FIELDS}::test_what_a_body_asks_to_see",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        GENERATION,
        "continuous_usage_stats: bool = False",
        "continuous_usage_stats: bool = True",
        (f"{IN_CHAT}::test_streamed_usage_comes_last_and_counts_ids",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        FORM,
        "return not (self.continuous_usage or ",
        "return not (",
        (f"{IN_DETAILS}::test_every_chunk_counts_what_was_used_so_far",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        FRAMES,
        "            self._count(self._show.count())\n",
        "            pass\n",
        (f"{IN_FRAMES}::test_usage_so_far_is_in_every_chunk_where_it_is_wanted",),
    ),
    Mutant(
        ("stream_options", "stream_options.continuous_usage_stats"),
        FRAMES,
        "            self._count(Usage(show.count().prompt_tokens, 0))\n",
        "            pass\n",
        (f"{IN_FRAMES}::test_usage_so_far_is_in_every_chunk_where_it_is_wanted",),
    ),
    Mutant(
        ("stream_options", "stream_options.include_obfuscation"),
        GENERATION,
        "include_obfuscation: Annotated[object, Only(False)] = None",
        "include_obfuscation: object = None",
        BAD_CHAT,
    ),
    Mutant(
        ("stream_options", "stream_options.include_obfuscation"),
        GENERATION,
        "include_obfuscation: Annotated[object, Only(False)] = None",
        "include_obfuscation: Refused = None",
        AT_LIMITS,
    ),
    Mutant(
        ("logprobs",),
        CHAT,
        "return (self.top_logprobs or 0) if self.logprobs else None",
        "return self.top_logprobs if self.logprobs else None",
        (f"{IN_FIELDS}::test_logprobs_of_completions_are_a_count_and_with_echo_the_prompts_too",),
    ),
    Mutant(
        ("logprobs",),
        CHAT,
        "logprobs: bool = False",
        "logprobs: bool = True",
        (f"{IN_FIELDS}::test_defaults_are_openais_but_for_max_tokens_which_is_all_the_room",),
    ),
    Mutant(
        ("logprobs",),
        COMPLETIONS,
        "Field(ge=0, le=5)] | None = None",
        "Field(ge=0, le=5)] | None = 0",
        (f"{IN_FIELDS}::test_logprobs_of_completions_are_a_count_and_with_echo_the_prompts_too",),
    ),
    Mutant(("logprobs",), COMPLETIONS, "Field(ge=0, le=5)]", "Field(ge=0, le=6)]", BAD_COMPLETION),
    Mutant(("logprobs",), COMPLETIONS, "Field(ge=0, le=5)]", "Field(ge=-1, le=5)]", BAD_COMPLETION),
    Mutant(("logprobs",), COMPLETIONS, "Field(ge=0, le=5)]", "Field(ge=0, le=4)]", AT_LIMITS),
    Mutant(
        ("logprobs",),
        COMPLETIONS,
        "Field(ge=0, le=5)]",
        "Field(ge=1, le=5)]",
        (f"{IN_DETAILS}::test_an_echo_begins_with_the_prompt_and_its_log_probabilities",),
    ),
    Mutant(
        ("logprobs",),
        ASK,
        "logprobs=body.logprob_count is not None,",
        "logprobs=False,",
        (f"{IN_DETAILS}::test_every_token_of_a_chat_has_its_log_probability",),
    ),
    Mutant(
        ("logprobs",),
        ASK,
        "logprobs=body.logprob_count is not None,",
        "logprobs=bool(body.logprob_count),",
        (f"{IN_DETAILS}::test_streamed_log_probabilities_are_those_of_the_whole_answer",),
    ),
    Mutant(
        ("logprobs",),
        ASK,
        "logprobs=body.logprob_count,",
        "logprobs=None,",
        (f"{IN_FIELDS}::test_sampling_fields_reach_the_engine_request",),
    ),
    Mutant(
        ("logprobs",),
        FORM,
        "self.continuous_usage or self.logprobs or ",
        "self.continuous_usage or ",
        (f"{IN_DETAILS}::test_every_token_of_a_chat_has_its_log_probability",),
    ),
    Mutant(
        ("logprobs",),
        ANSWER,
        "            self._details.score(entries)",
        "            pass",
        (f"{IN_DETAILS}::test_every_token_of_a_chat_has_its_log_probability",),
    ),
    Mutant(
        ("logprobs", "return_token_ids"),
        ANSWER,
        "token_ids[: self._decoder.completion_tokens - before]",
        "token_ids",
        (f"{IN_DETAILS}::test_tokens_after_a_stop_string_are_not_told",),
    ),
    Mutant(
        ("logprobs",),
        DETAILS,
        '"logprob": _finite(logprob), ',
        '"logprob": 0.0, ',
        (f"{IN_FRAMES}::test_log_probabilities_of_a_chat_show_every_token_and_its_bytes",),
    ),
    Mutant(
        ("logprobs",),
        DETAILS,
        "        self._offset += len(token)\n",
        "        self._offset += 1\n",
        (f"{IN_FRAMES}::test_log_probabilities_of_a_completion_have_offsets_into_the_whole_text",),
    ),
    Mutant(
        ("logprobs",),
        DETAILS,
        "for other, logprob in others}",
        "for other, logprob in others[:0]}",
        (f"{IN_FRAMES}::test_log_probabilities_of_a_completion_have_offsets_into_the_whole_text",),
    ),
    Mutant(
        ("logprobs",),
        ENGINE_SAMPLING,
        "    if constrained:\n        logits = logits.copy()\n",
        "    if constrained:\n",
        (f"{IN_ENGINE_SAMPLING}::test_scores_are_of_the_raw_distribution_and_only_where_wanted",),
    ),
    Mutant(
        ("logprobs",),
        VLLM_JSON,
        '"logprobs": max(params.logprobs or 0, params.prompt_logprobs or 0),',
        '"logprobs": params.prompt_logprobs or 0,',
        (f"{IN_VLLM}::test_log_probabilities_are_asked_for_by_ids_with_one_count",),
    ),
    Mutant(
        ("logprobs",),
        VLLM_JSON,
        "if params.logprobs is None and params.prompt_logprobs is None:",
        "if not params.logprobs and params.prompt_logprobs is None:",
        (f"{IN_VLLM}::test_log_probabilities_are_asked_for_by_ids_with_one_count",),
    ),
    Mutant(
        ("logprobs",),
        VLLM_JSON,
        '        "return_tokens_as_token_ids": True,\n',
        "",
        (f"{IN_VLLM}::test_log_probabilities_are_asked_for_by_ids_with_one_count",),
    ),
    Mutant(
        ("logprobs",),
        VLLM,
        "        return COMPLETIONS\n\n\nclass VLLMBackend",
        "        return super()._choose_route()\n\n\nclass VLLMBackend",
        (f"{IN_VLLM_SCORES}::test_log_probabilities_go_by_completions_whatever_the_backend_prefers",),
    ),
    Mutant(
        ("logprobs",),
        VLLM,
        "is_scored = params.logprobs is not None or ",
        "is_scored = bool(params.logprobs) or ",
        (f"{IN_VLLM_SCORES}::test_log_probabilities_go_by_completions_whatever_the_backend_prefers",),
    ),
    Mutant(
        ("logprobs",),
        VLLM_SCORES,
        "item[1])[:count]",
        "item[1])",
        (f"{IN_VLLM_SCORES}::test_alternatives_are_the_most_probable_in_order_without_the_token_for_its_own_sake",),
    ),
    Mutant(
        ("logprobs",),
        VLLM_SCORES,
        "key=lambda item: -item[1]",
        "key=lambda item: 0",
        (f"{IN_VLLM_SCORES}::test_alternatives_are_the_most_probable_in_order_without_the_token_for_its_own_sake",),
    ),
    Mutant(
        ("logprobs",),
        TRITON,
        "    yield from _penalties(params)\n",
        "    yield from _penalties(params)\n"
        "    if params.logprobs is not None:\n"
        '        yield "return_log_probs", "BOOL", (1, 1), bytes([1])\n',
        (f"{IN_TRITON}::test_log_probabilities_are_never_asked_for",),
    ),
    Mutant(
        ("logprobs",),
        TRITON_CONFIG,
        "    if BIAS in inputs and bias_length:\n",
        '    if "return_log_probs" in inputs:\n        yield Need.LOGPROBS\n    if BIAS in inputs and bias_length:\n',
        (f"{IN_CAPABILITIES}::test_a_triton_model_can_do_what_its_configuration_declares",),
    ),
    Mutant(
        ("logprobs",),
        VLLM,
        "    Need.LOGPROBS, Need.PROMPT_LOGPROBS,",
        "    Need.PROMPT_LOGPROBS,",
        (f"{IN_CAPABILITIES}::test_vllm_can_do_all_but_what_needs_a_flag",),
    ),
    Mutant(("logprobs",), GENERATION, "if self.logprob_count is not None:", "if self.logprob_count:", WHAT_IS_NEEDED),
    Mutant(
        ("logprobs",),
        GENERATION,
        'asked[Need.LOGPROBS] = "logprobs"',
        'asked[Need.LOGPROBS] = "top_logprobs"',
        ABLE_OR_REFUSED,
    ),
    Mutant(("logprobs", "echo"), ASK, "needs=needs,", "needs={},", ABLE_OR_REFUSED),
    Mutant(
        ("logprobs", "echo"),
        FLEET,
        "if route.backend not in lacking:",
        "if True:",
        (*ABLE_OR_REFUSED, f"{IN_NEEDS}::test_who_lacks_a_need_is_no_candidate_whatever_the_load"),
    ),
    Mutant(("logprobs", "echo"), FLEET, "if may_have and all(", "if not may_have and all(", ABLE_OR_REFUSED),
    Mutant(("logprobs", "echo"), NEEDS, 'supported by {by}.", param=field)', 'supported by {by}.")', ABLE_OR_REFUSED),
    Mutant(("top_logprobs",), CHAT, "Field(ge=0, le=20)", "Field(ge=0, le=21)", BAD_CHAT),
    Mutant(("top_logprobs",), CHAT, "Field(ge=0, le=20)", "Field(ge=-1, le=20)", BAD_CHAT),
    Mutant(("top_logprobs",), CHAT, "Field(ge=0, le=20)", "Field(ge=0, le=19)", AT_LIMITS),
    Mutant(("top_logprobs",), CHAT, "Field(ge=0, le=20)", "Field(ge=1, le=20)", AT_LIMITS),
    Mutant(("top_logprobs",), CHAT, 'if count and not info.data.get("logprobs", True):', "if False:", BAD_CHAT),
    Mutant(
        ("top_logprobs",),
        CHAT,
        'if count and not info.data.get("logprobs", True):',
        'if not info.data.get("logprobs", True):',
        (f"{IN_FIELDS}::test_values_that_ask_for_nothing_are_let_through",),
    ),
    Mutant(
        ("top_logprobs",),
        CHAT,
        "return (self.top_logprobs or 0) if",
        "return 0 if",
        (f"{IN_FIELDS}::test_sampling_fields_reach_the_engine_request",),
    ),
    Mutant(
        ("top_logprobs",),
        DETAILS,
        "                for token_id, logprob in entry.top\n",
        "                for token_id, logprob in entry.top[:1]\n",
        (f"{IN_FRAMES}::test_log_probabilities_of_a_chat_show_every_token_and_its_bytes",),
    ),
    Mutant(("echo",), COMPLETIONS, "echo: bool = False", "echo: bool = True", WHAT_IS_NEEDED),
    Mutant(
        ("echo",),
        ASK,
        "if body.echo else (),",
        "if False else (),",
        (f"{IN_DETAILS}::test_every_choice_echoes_its_own_prompt",),
    ),
    Mutant(
        ("echo",),
        ASK,
        "language.decode(prompt.token_ids, shows_special=True)",
        "language.decode(prompt.token_ids)",
        (f"{IN_DETAILS}::test_an_echo_shows_special_tokens_as_well",),
    ),
    Mutant(
        ("echo",),
        ASK,
        "self.echoes[index * len(self.echoes) // len(self.requests)]",
        "self.echoes[0]",
        (f"{IN_DETAILS}::test_every_choice_echoes_its_own_prompt",),
    ),
    Mutant(
        ("echo",), ASK, "echo=body.echo,", "echo=False,", (f"{IN_DETAILS}::test_every_choice_echoes_its_own_prompt",)
    ),
    Mutant(
        ("echo",),
        FORM,
        "or self.token_ids or self.echo or self.parsing",
        "or self.token_ids or self.parsing",
        (f"{IN_DETAILS}::test_every_choice_echoes_its_own_prompt",),
    ),
    Mutant(
        ("echo",),
        FRAMES,
        '(self._chunk(self._body(Content(show.echo))) if show.echo else b"")',
        'b""',
        (f"{IN_FRAMES}::test_an_echoed_prompt_comes_before_the_text",),
    ),
    Mutant(
        ("echo",),
        FRAMES,
        "[Content(self._show.echo)] if self._show.echo else []",
        "[]",
        (f"{IN_FRAMES}::test_an_echoed_prompt_comes_before_the_text",),
    ),
    Mutant(
        ("echo",),
        GENERATION,
        "echo: Annotated[bool, Only(False)] = False",
        "echo: bool = False",
        (f"{IN_FIELDS}::test_what_is_not_supported_is_refused_by_name",),
    ),
    Mutant(
        ("echo",),
        GENERATION,
        "echo: Annotated[bool, Only(False)] = False",
        "echo: Refused = None",
        (f"{IN_FIELDS}::test_values_that_ask_for_nothing_are_let_through",),
    ),
    Mutant(
        ("echo",),
        COMPLETIONS,
        "return self.logprobs if self.echo else None",
        "return self.logprobs",
        (f"{IN_FIELDS}::test_logprobs_of_completions_are_a_count_and_with_echo_the_prompts_too",),
    ),
    Mutant(
        ("echo",),
        ASK,
        "prompt_logprobs=body.prompt_logprob_count,",
        "prompt_logprobs=None,",
        (f"{IN_DETAILS}::test_an_echo_begins_with_the_prompt_and_its_log_probabilities",),
    ),
    Mutant(
        ("echo", "log-probabilities of a prompt"),
        FORM,
        "prompt_left=len(prompt) if self.echo and self.logprobs else 0,",
        "prompt_left=0,",
        (f"{IN_DETAILS}::test_an_echo_begins_with_the_prompt_and_its_log_probabilities",),
    ),
    Mutant(
        ("echo", "log-probabilities of a prompt"),
        DETAILS,
        "            self.prompt_left -= len(entries)\n            self._tell(entries)\n",
        "            self.prompt_left -= len(entries)\n",
        (f"{IN_FRAMES}::test_log_probabilities_of_a_completion_have_offsets_into_the_whole_text",),
    ),
    Mutant(("echo",), GENERATION, "if self.prompt_logprob_count is not None:", "if self.echo:", WHAT_IS_NEEDED),
    Mutant(
        ("echo",),
        GENERATION,
        "if self.prompt_logprob_count is not None:",
        "if self.prompt_logprob_count:",
        (f"{IN_DETAILS}::test_an_echo_begins_with_the_prompt_and_its_log_probabilities",),
    ),
    Mutant(
        ("echo",),
        GENERATION,
        'asked[Need.PROMPT_LOGPROBS] = "echo"',
        'asked[Need.PROMPT_LOGPROBS] = "logprobs"',
        ABLE_OR_REFUSED,
    ),
    Mutant(
        ("echo",),
        VLLM_JSON,
        '"echo": params.prompt_logprobs is not None,',
        '"echo": bool(params.prompt_logprobs),',
        (f"{IN_VLLM}::test_log_probabilities_are_asked_for_by_ids_with_one_count",),
    ),
    Mutant(
        ("echo",),
        VLLM_JSON,
        '"logprobs": max(params.logprobs or 0, params.prompt_logprobs or 0),',
        '"logprobs": params.logprobs or 0,',
        (f"{IN_VLLM}::test_log_probabilities_are_asked_for_by_ids_with_one_count",),
    ),
    Mutant(
        ("echo",),
        VLLM,
        " or params.prompt_logprobs is not None\n",
        "\n",
        (f"{IN_VLLM_SCORES}::test_log_probabilities_go_by_completions_whatever_the_backend_prefers",),
    ),
    Mutant(
        ("echo",),
        VLLM_SCORES,
        "((self._prompt_rows, self._prompt_top or 0), (self._rows, self._top or 0))",
        "((self._rows, self._top or 0), (self._prompt_rows, self._prompt_top or 0))",
        (f"{IN_VLLM_SCORES}::test_a_prompt_comes_first_and_its_first_token_has_no_log_probability",),
    ),
    Mutant(
        ("echo",),
        VLLM,
        "    Need.LOGPROBS, Need.PROMPT_LOGPROBS,",
        "    Need.LOGPROBS,",
        (f"{IN_CAPABILITIES}::test_vllm_can_do_all_but_what_needs_a_flag",),
    ),
    Mutant(
        ("return_token_ids",),
        GENERATION,
        "return_token_ids: bool = False",
        "return_token_ids: bool = True",
        (f"{IN_FIELDS}::test_what_a_body_asks_to_see",),
    ),
    Mutant(
        ("return_token_ids",),
        ASK,
        "token_ids=body.wants_token_ids,",
        "token_ids=False,",
        (f"{IN_DETAILS}::test_token_ids_of_prompt_and_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        FORM,
        "or self.token_ids or self.echo or self.parsing",
        "or self.echo or self.parsing",
        (f"{IN_DETAILS}::test_token_ids_of_prompt_and_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        FORM,
        "wants_ids=self.token_ids,",
        "wants_ids=False,",
        (f"{IN_DETAILS}::test_token_ids_of_prompt_and_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        FORM,
        "prompt_ids=prompt.token_ids if self.token_ids and self.head.dialect is CHAT else (),",
        "prompt_ids=(),",
        (f"{IN_DETAILS}::test_token_ids_of_prompt_and_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        FORM,
        "prompt_ids=prompt.token_ids if self.token_ids and not is_chat else None,",
        "prompt_ids=None,",
        (f"{IN_DETAILS}::test_token_ids_of_a_completion_come_with_those_of_its_own_prompt",),
    ),
    Mutant(
        ("return_token_ids",),
        FRAMES,
        "if opening and show.prompt_ids:",
        "if False:",
        (f"{IN_FRAMES}::test_details_leave_with_the_next_chunk_and_the_rest_with_the_last",),
    ),
    Mutant(
        ("return_token_ids",),
        FRAMES,
        ' + self._show.encode_prompt_ids() + b"}"',
        ' + b"}"',
        (f"{IN_FRAMES}::test_token_ids_of_a_whole_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        FRAMES,
        "show.details.take_logprobs(), show.details.take_ids()",
        'show.details.take_logprobs(), b""',
        (f"{IN_FRAMES}::test_token_ids_of_a_whole_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        DETAILS,
        "self._ids += token_ids",
        "self._ids = [*token_ids]",
        (f"{IN_DETAILS}::test_token_ids_of_prompt_and_answer",),
    ),
    Mutant(
        ("return_token_ids",),
        DETAILS,
        "token_ids, self._ids = self._ids, []",
        "token_ids = self._ids",
        (f"{IN_FRAMES}::test_details_leave_with_the_next_chunk_and_the_rest_with_the_last",),
    ),
    Mutant(
        ("return_token_ids",),
        DETAILS,
        "            self.prompt_ids = None\n",
        "",
        (f"{IN_FRAMES}::test_token_ids_of_a_completion_come_with_those_of_its_own_prompt",),
    ),
    Mutant(
        ("add_special_tokens",),
        COMPLETIONS,
        "add_special_tokens: bool = True",
        "add_special_tokens: bool = False",
        (f"{IN_FIELDS}::test_a_completions_special_tokens_may_be_left_out",),
    ),
    Mutant(
        ("add_special_tokens",),
        COMPLETIONS,
        "add_special_tokens=self.add_special_tokens",
        "add_special_tokens=True",
        (f"{IN_FIELDS}::test_a_completions_special_tokens_may_be_left_out",),
    ),
    Mutant(
        ("add_special_tokens",),
        CHAT,
        "add_special_tokens: bool = False",
        "add_special_tokens: bool = True",
        (f"{IN_CHAT_BODY}::test_special_tokens_may_be_added_to_a_chat",),
    ),
    Mutant(
        ("add_special_tokens",),
        CHAT,
        "add_special_tokens=self.add_special_tokens)",
        "add_special_tokens=False)",
        (f"{IN_CHAT_BODY}::test_special_tokens_may_be_added_to_a_chat",),
    ),
    Mutant(
        ("add_special_tokens",),
        LANGUAGE,
        "return self._encoder.draft_framed(text, param) if is_framed else self._encoder.draft(text, param)",
        "return self._encoder.draft(text, param)",
        (f"{IN_LANGUAGE}::test_completion_prompt_gets_the_tokenizers_special_tokens",),
    ),
    Mutant(
        ("add_special_tokens",),
        LANGUAGE,
        "return self._encoder.draft_framed(text, param) if is_framed else self._encoder.draft(text, param)",
        "return self._encoder.draft_framed(text, param)",
        (f"{IN_LANGUAGE}::test_chat_has_one_bos",),
    ),
    Mutant(
        ("suffix",), COMPLETIONS, 'suffix: Annotated[object, Only("")] = None', "suffix: object = None", BAD_COMPLETION
    ),
    Mutant(
        ("suffix",),
        COMPLETIONS,
        'suffix: Annotated[object, Only("")] = None',
        "suffix: Annotated[object, Only()] = None",
        AT_LIMITS,
    ),
]

STREAMS = [
    Mutant(
        ("streams.role",),
        DIALECTS,
        '"delta":{"role":"assistant","content":"",',
        '"delta":{"content":"",',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.role",),
        ANSWER,
        "frames = self._frames.open() + frames",
        "frames = frames + self._frames.open()",
        (f"{IN_CHAT}::test_the_bytes_of_a_stream",),
    ),
    Mutant(
        ("streams.role",),
        DIALECTS,
        'chunk_object="text_completion",\n    opening=b"",',
        'chunk_object="text_completion",\n    opening=b\'"text":""\',',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.content",),
        FRAMES,
        'orjson.dumps(text) + self._after_text if text else b""',
        "orjson.dumps(text) + self._after_text",
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.content",),
        FRAMES,
        'return b\'"delta":{"%b":%b}\' % (self._show.reasoning, orjson.dumps(text))',
        'return b\'"delta":{"content":%b}\' % orjson.dumps(text)',
        (f"{IN_FRAMES}::test_calls_and_reasoning_leave_each_as_openai_sends_it",),
    ),
    Mutant(
        ("streams.content",),
        FRAMES,
        'return orjson.dumps({"index": index, "id": call_id,',
        'return orjson.dumps({"index": 0, "id": call_id,',
        (f"{IN_FRAMES}::test_calls_and_reasoning_leave_each_as_openai_sends_it",),
    ),
    Mutant(
        ("streams.finish_reason",),
        FRAMES,
        "return self._frame(self._dialect.last, reason=orjson.dumps(reason)) + self._end(completion_tokens)",
        "return self._end(completion_tokens)",
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.finish_reason",),
        DIALECTS,
        "last=b'\"delta\":{}',",
        'last=b\'"delta":{"content":""}\',',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.finish_reason",),
        FRAMES,
        '        rest = b"".join([self._chunk(self._body(part)) for part in self._show.flush()])\n',
        '        rest = b""\n',
        (f"{IN_FRAMES}::test_calls_and_reasoning_leave_each_as_openai_sends_it",),
    ),
    Mutant(
        ("streams.finish_reason",),
        TOKEN_LANE,
        "        if frames:\n            self.begin(frames)\n",
        "",
        (f"{IN_CHOICES}::test_streamed_choices_interleave_and_the_last_one_ends_the_stream",),
    ),
    Mutant(
        ("streams.usage", "streams.done"),
        FRAMES,
        "return counts + DONE",
        "return DONE + counts",
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("streams.usage", "streams.done"),
        FRAMES,
        "return None if self._open else Usage(",
        "return Usage(",
        (f"{IN_FRAMES}::test_the_last_choice_ends_the_answer_and_its_usage_counts_all",),
    ),
    Mutant(
        ("streams.index",),
        FRAMES,
        """self._before = self._head + b'{"index":%d,' % index""",
        """self._before = self._head + b'{"index":%d,' % 0""",
        (f"{IN_FRAMES}::test_the_last_choice_ends_the_answer_and_its_usage_counts_all",),
    ),
    Mutant(
        ("streams.index",),
        FRAMES,
        "values = (self._index, self._body()",
        "values = (0, self._body()",
        (f"{IN_FRAMES}::test_the_last_choice_ends_the_answer_and_its_usage_counts_all",),
    ),
    Mutant(
        ("streams.index",),
        ASK,
        "Place(index, gathering, echo)",
        "Place(0, gathering, echo)",
        (f"{IN_CHOICES}::test_streamed_choices_interleave_and_the_last_one_ends_the_stream",),
    ),
    Mutant(
        ("streams.index",),
        TOKEN_LANE,
        "        self.begin = attempt.begin\n"
        "        self.fail = attempt.fail\n\n"
        "    def close(self, frames: bytes) -> None:\n"
        "        self._attempt.close(self._index, frames)\n",
        "        self._index = held = [index]\n"
        "        self.begin = lambda frames: held.append(frames) or held.append\n"
        "        self.fail = attempt.fail\n\n"
        "    def close(self, frames):\n"
        "        index, *before = self._index\n"
        '        self._attempt.close(index, b"".join(before) + frames)\n',
        (f"{IN_CHOICES}::test_streamed_choices_interleave_and_the_last_one_ends_the_stream",),
    ),
    Mutant(
        ("streams.details",),
        FRAMES,
        "self._frame(body, details.take_logprobs(), reason,",
        "self._frame(body, NULL if reason == NULL else details.take_logprobs(), reason,",
        (f"{IN_FRAMES}::test_details_leave_with_the_next_chunk_and_the_rest_with_the_last",),
    ),
    Mutant(
        ("streams.details",),
        FRAMES,
        "details.take_logprobs(), reason, details.take_ids())",
        'details.take_logprobs(), reason, b"" if reason == NULL else details.take_ids())',
        (f"{IN_FRAMES}::test_details_leave_with_the_next_chunk_and_the_rest_with_the_last",),
    ),
    Mutant(
        ("streams.details",),
        FRAMES,
        "last = self._chunk(self._dialect.last, self._show.encode_reason(reason))",
        "last = self._frame(self._dialect.last, reason=self._show.encode_reason(reason))",
        (f"{IN_FRAMES}::test_details_leave_with_the_next_chunk_and_the_rest_with_the_last",),
    ),
    Mutant(
        ("streams.fold",),
        FRAMES,
        "        self._parts += self._show.feed(text)\n",
        "        self._parts = [*self._show.feed(text)]\n",
        (f"{IN_FRAMES}::test_folded_chat_is_one_object",),
    ),
    Mutant(
        ("streams.fold",),
        FRAMES,
        "        self._parts += self._show.flush()\n",
        "",
        (f"{IN_FRAMES}::test_folded_calls_are_whole",),
    ),
    Mutant(
        ("streams.fold",),
        FRAMES,
        "self._gathering.keep(self._index, ",
        "self._gathering.keep(0, ",
        (f"{IN_FRAMES}::test_the_last_choice_ends_the_answer_and_its_usage_counts_all",),
    ),
    Mutant(
        ("streams.fold",),
        FRAMES,
        "logprobs, show.encode_reason(reason), more)",
        "logprobs, orjson.dumps(reason), more)",
        (f"{IN_FRAMES}::test_folded_calls_are_whole",),
    ),
    Mutant(
        ("streams.fold",),
        FRAMES,
        "show.details.take_logprobs(), show.details.take_ids()",
        "NULL, show.details.take_ids()",
        (f"{IN_DETAILS}::test_streamed_log_probabilities_are_those_of_the_whole_answer",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        TOKEN_LANE,
        "if streams.keep_alive_s is not None and self._ask.form.stream:",
        "if False:",
        (f"{IN_ALIVE}::test_a_stream_that_has_begun_gets_a_comment_for_each_silent_while",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        TOKEN_LANE,
        "if streams.keep_alive_s is not None and self._ask.form.stream:",
        "if streams.keep_alive_s is not None:",
        (f"{IN_ALIVE}::test_an_answer_that_is_not_streamed_gets_none",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        TOKEN_LANE,
        'ALIVE = b": keep-alive',
        'ALIVE = b"data: keep-alive',
        (f"{IN_ALIVE}::test_a_stream_that_has_begun_gets_a_comment_for_each_silent_while",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        PULSE,
        "max(self._heard(), self._last_beat)",
        "self._last_beat",
        (f"{IN_ALIVE}::test_a_stream_that_speaks_gets_none",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        PULSE,
        "        self._wait(self._seconds)  # before the beat, which may be what ends this\n",
        "",
        (f"{IN_ALIVE}::test_a_stream_that_has_begun_gets_a_comment_for_each_silent_while",),
    ),
    Mutant(
        ("streams.keep_alive_s",),
        SETTINGS_FILE,
        "keep_alive_s: Seconds | None = None",
        "keep_alive_s: Seconds | None = 15.0",
        (f"{IN_SETTINGS}::test_a_models_parsers_and_paths_and_the_streams_are_read",),
    ),
    Mutant(
        ("streams.keep_alive_commits",),
        SETTINGS_FILE,
        "keep_alive_commits: Flag = False",
        "keep_alive_commits: Flag = True",
        (f"{IN_SETTINGS}::test_a_models_parsers_and_paths_and_the_streams_are_read",),
    ),
    Mutant(
        ("streams.keep_alive_commits",),
        TOKEN_LANE,
        "self._commits = streams.keep_alive_commits",
        "self._commits = True",
        (f"{IN_ALIVE}::test_nothing_is_sent_before_the_first_token_so_that_errors_keep_their_status",),
    ),
    Mutant(
        ("streams.keep_alive_commits",),
        TOKEN_LANE,
        "self._commits = streams.keep_alive_commits",
        "self._commits = False",
        (f"{IN_ALIVE}::test_a_comment_may_commit_the_status_and_then_errors_are_events",),
    ),
    Mutant(
        ("streams.keep_alive_commits", "errors.event"),
        TOKEN_LANE,
        "reply.takes_events = self._ask.form.stream",
        "reply.takes_events = False",
        (f"{IN_ALIVE}::test_a_comment_may_commit_the_status_and_then_errors_are_events",),
    ),
]

USAGE = [
    Mutant(
        ("usage.completion_tokens",),
        DECODER,
        '            if not self._include_stop:\n                return ""',
        "            if not self._include_stop:\n"
        '                self.completion_tokens -= 1\n                return ""',
        (f"{IN_DECODER}::test_eos_counts_and_shows_nothing",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        DECODER,
        "                    self.completion_tokens += 1\n                    return text",
        "                    return text",
        (f"{IN_DECODER}::test_eos_counts_and_shows_nothing",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        DECODER,
        "        if self._is_over:\n            self.stopped = True\n",
        "        if self._is_over:\n            self.stopped = True\n            self.completion_tokens += 1\n",
        (f"{IN_DECODER}::test_ids_after_the_end_neither_count_nor_show_and_ask_for_a_stop",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        DECODER,
        "            self._is_over = self.stopped = True\n",
        "            self._is_over = self.stopped = True\n            self.completion_tokens -= 1\n",
        (f"{IN_DECODER}::test_stop_string_ends_the_answer_and_later_tokens_do_not_count",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        DECODER,
        "        text = self._detokenizer.feed(token_id)\n",
        "        text = self._detokenizer.feed(token_id)\n        self.completion_tokens -= not text\n",
        (f"{IN_ANSWER}::test_text_and_usage_do_not_depend_on_how_tokens_come",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        TRITON,
        "return (*token_ids, self._end_id), FinishReason.STOP",
        "return token_ids, FinishReason.STOP",
        (f"{IN_TRITON}::test_ends_are_inferred",),
    ),
    Mutant(
        ("usage.completion_tokens",),
        FRAMES,
        "self._completion_tokens += completion_tokens",
        "self._completion_tokens = completion_tokens",
        (f"{IN_CHOICES}::test_n_choices_in_order_with_one_prompt_and_all_their_tokens_counted",),
    ),
    Mutant(
        ("usage.prompt_tokens",),
        ASK,
        "prompt_tokens=sum(map(len, prompts)),",
        "prompt_tokens=len(prompts[0]),",
        (f"{IN_CHOICES}::test_each_prompt_of_a_list_has_its_own_choices",),
    ),
    Mutant(
        ("usage.prompt_tokens",),
        ASK,
        "prompt_tokens=sum(map(len, prompts)),",
        "prompt_tokens=body.n * sum(map(len, prompts)),",
        (f"{IN_CHOICES}::test_n_choices_in_order_with_one_prompt_and_all_their_tokens_counted",),
    ),
    Mutant(
        ("usage.total_tokens",),
        DIALECTS,
        "total = self.prompt_tokens + self.completion_tokens",
        "total = self.completion_tokens",
        (f"{IN_CHAT}::test_a_plain_answer",),
    ),
]

TOKENS = [
    Mutant(
        ("tokenize.model", "detokenize.model"),
        INFERENCE,
        "        if lane is None:\n            raise unknown",
        "        lane = lane or next(iter(self._lanes.values()))\n        if lane is None:\n            raise unknown",
        (f"{IN_MIXED}::test_text_becomes_tokens_and_tokens_text_without_an_engine",),
    ),
    Mutant(
        ("/tokenize", "/detokenize"),
        INFERENCE,
        "        if path in TEXTS:\n",
        "        if False:\n",
        (f"{IN_MIXED}::test_text_becomes_tokens_and_tokens_text_without_an_engine",),
    ),
    Mutant(
        ("tokenize.prompt",),
        TOKENIZE,
        "    prompt: str\n",
        '    prompt: str = ""\n',
        (f"{IN_TOKENIZE}::test_a_bad_body_is_named",),
    ),
    Mutant(
        ("tokenize.prompt",),
        TOKENIZE,
        "language.tokenize_text(text.prompt,",
        "language.tokenize_text(text.prompt.strip(),",
        (f"{IN_TOKENIZE}::test_a_text_is_tokenized_as_it_is",),
    ),
    Mutant(
        ("tokenize.prompt",),
        TOKENIZE,
        "token_ids = language.tokenize_text(text.prompt, add_special_tokens=text.add_special_tokens)",
        "token_ids = [*language.encode_text(text.prompt, add_special_tokens=text.add_special_tokens).token_ids]",
        (f"{IN_TOKENIZE}::test_a_text_longer_than_the_context_is_counted",),
    ),
    Mutant(
        ("tokenize.add_special_tokens",),
        TOKENIZE,
        "add_special_tokens: bool = True",
        "add_special_tokens: bool = False",
        (f"{IN_TOKENIZE}::test_a_texts_special_tokens_may_be_left_out",),
    ),
    Mutant(
        ("tokenize.add_special_tokens",),
        TOKENIZE,
        "add_special_tokens=text.add_special_tokens",
        "add_special_tokens=True",
        (f"{IN_TOKENIZE}::test_a_texts_special_tokens_may_be_left_out",),
    ),
    Mutant(
        ("tokenize.add_special_tokens",),
        TOKENIZE,
        "add_special_tokens=chat.add_special_tokens",
        "add_special_tokens=False",
        (f"{IN_TOKENIZE}::test_a_chats_special_tokens_may_be_added",),
    ),
    Mutant(
        ("tokenize.add_special_tokens",),
        CHAT,
        "add_special_tokens: bool = False",
        "add_special_tokens: bool = True",
        (f"{IN_TOKENIZE}::test_a_chats_special_tokens_may_be_added",),
    ),
    Mutant(
        ("tokenize.messages",),
        TOKENIZE,
        'if document.get("messages") is None:',
        'if "prompt" in document:',
        (f"{IN_TOKENIZE}::test_a_bad_body_is_named",),
    ),
    Mutant(
        ("tokenize.messages",),
        TOKENIZE,
        "for message in chat.messages]",
        "for message in chat.messages[-1:]]",
        (f"{IN_TOKENIZE}::test_a_chat_has_the_ids_that_its_completion_has",),
    ),
    Mutant(
        ("tokenize.messages",),
        TOKENIZE,
        "token_ids = language.tokenize_chat(messages, how, add_special_tokens=chat.add_special_tokens)",
        "token_ids = [*language.render_chat(messages, how, add_special_tokens=chat.add_special_tokens).token_ids]",
        (f"{IN_TOKENIZE}::test_a_text_longer_than_the_context_is_counted",),
    ),
    Mutant(
        ("tokenize.tools",),
        TOKENIZE,
        "plan_tools(chat.tools, None, parallel=True)",
        "None",
        (f"{IN_TOKENIZE}::test_a_chat_has_the_ids_that_its_completion_has",),
    ),
    Mutant(
        ("tokenize.add_generation_prompt",),
        TOKENIZE,
        "how = chat.rendering(",
        'how = chat.model_copy(update={"add_generation_prompt": None}).rendering(',
        (f"{IN_TOKENIZE}::test_a_chat_has_the_ids_that_its_completion_has",),
    ),
    Mutant(
        ("tokenize.continue_final_message",),
        TOKENIZE,
        "how = chat.rendering(",
        'how = chat.model_copy(update={"continue_final_message": False}).rendering(',
        (f"{IN_TOKENIZE}::test_a_chat_has_the_ids_that_its_completion_has",),
    ),
    Mutant(
        ("tokenize.chat_template_kwargs",),
        TOKENIZE,
        "dict(chat.chat_template_kwargs or {})",
        "{}",
        (f"{IN_TOKENIZE}::test_a_chats_template_gets_its_variables",),
    ),
    Mutant(
        ("tokenize.return_token_strs", "tokenize.token_strs"),
        TOKENIZE,
        "    if shows_tokens:\n",
        "    if True:\n",
        (f"{IN_TOKENIZE}::test_text_has_its_ids_and_their_count",),
    ),
    Mutant(
        ("tokenize.return_token_strs", "tokenize.token_strs"),
        TOKENIZE,
        "shows_tokens=text.return_token_strs",
        "shows_tokens=False",
        (f"{IN_TOKENIZE}::test_tokens_are_told_as_the_vocabulary_has_them",),
    ),
    Mutant(
        ("tokenize.return_token_strs", "tokenize.token_strs"),
        TOKENIZE,
        "shows_tokens=chat.return_token_strs",
        "shows_tokens=False",
        (f"{IN_TOKENIZE}::test_tokens_are_told_as_the_vocabulary_has_them",),
    ),
    Mutant(
        ("tokenize.token_strs",),
        TOKENIZE,
        "language.token(token_id)",
        "language.decode([token_id])",
        (f"{IN_TOKENIZE}::test_tokens_are_told_as_the_vocabulary_has_them",),
    ),
    Mutant(
        ("tokenize.count",),
        TOKENIZE,
        '"count": len(token_ids),',
        '"count": len(set(token_ids)),',
        (f"{IN_TOKENIZE}::test_a_text_is_tokenized_as_it_is",),
    ),
    Mutant(
        ("tokenize.max_model_len",),
        TOKENIZE,
        "language.context_length})",
        "language.context_length - len(token_ids)})",
        (f"{IN_TOKENIZE}::test_text_has_its_ids_and_their_count",),
    ),
    Mutant(
        ("tokenize.tokens",),
        TOKENIZE,
        "for piece in _cut(token_ids))\n    strings",
        "for piece in _cut(token_ids[1:]))\n    strings",
        (f"{IN_TOKENIZE}::test_text_has_its_ids_and_their_count",),
    ),
    Mutant(
        ("detokenize.tokens",),
        TOKENIZE,
        "tokens: Annotated[list[TokenId],",
        "tokens: Annotated[list[int],",
        (f"{IN_TOKENIZE}::test_bad_ids_are_named",),
    ),
    Mutant(
        ("detokenize.tokens",),
        TOKENIZE,
        "document).tokens, shows_special=True)",
        "document).tokens[1:], shows_special=True)",
        (f"{IN_TOKENIZE}::test_ids_become_text_with_their_special_tokens",),
    ),
    Mutant(
        ("detokenize.prompt",),
        TOKENIZE,
        "document).tokens, shows_special=True)",
        "document).tokens)",
        (f"{IN_TOKENIZE}::test_ids_become_text_with_their_special_tokens",),
    ),
]

TABLE_OF_ERRORS = (f"{IN_DOCS}::test_the_table_of_errors_is_the_taxonomy",)
BAD_INPUT = (f"{IN_ERRORS}::test_bad_input_is_named_and_reaches_no_engine",)
WRONG_PATH = (f"{IN_ERRORS}::test_a_wrong_path_or_method_gets_openais_error_shape",)

FAILURES = [
    Mutant(
        ("errors.param", "errors"),
        ERRORS,
        '"param": error.param,',
        '"param": None,',
        BAD_INPUT,
    ),
    Mutant(
        ("errors.param",),
        PARSE,
        " if not step.endswith(TAG_MARK))",
        ")",
        BAD_CHAT,
    ),
    Mutant(("errors",), ERRORS, '"code": error.code}', '"code": error.status}', BAD_INPUT),
    Mutant(("errors",), ERRORS, '"type": error.type,', '"type": type(error).__name__,', BAD_INPUT),
    Mutant(("error.invalid_value",), TAXONOMY, 'code = "invalid_value"', 'code = "invalid"', BAD_INPUT),
    Mutant(
        ("error.invalid_value",),
        TAXONOMY,
        'status = 400\n    type = "invalid',
        'status = 422\n    type = "invalid',
        BAD_INPUT,
    ),
    Mutant(("error.invalid_value",), FIELDS, 'extra="forbid", ', 'extra="ignore", ', BAD_CHAT),
    Mutant(
        ("error.invalid_value",),
        FIELDS,
        '        raise refusal("is not supported")',
        "        return value",
        (f"{IN_FIELDS}::test_what_is_not_supported_is_refused_by_name",),
    ),
    Mutant(
        ("error.invalid_value",),
        PARSE,
        'at {where}.")',
        'at {where}.", param="body")',
        (f"{IN_FIELDS}::test_malformed_json_names_the_place_and_no_field",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        TAXONOMY,
        'class ContextLengthExceeded(InvalidRequest):\n    code = "context_length_exceeded"',
        "class ContextLengthExceeded(InvalidRequest):\n    pass",
        BAD_INPUT,
    ),
    Mutant(
        ("error.context_length_exceeded",),
        LANGUAGE,
        "if room < 1:",
        "if room < 0:",
        (f"{IN_LANGUAGE}::test_what_does_not_fit_is_refused_with_its_numbers",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        LANGUAGE,
        "max_tokens > room:",
        "max_tokens > room + 1:",
        (f"{IN_LANGUAGE}::test_what_does_not_fit_is_refused_with_its_numbers",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        LANGUAGE,
        "max_tokens > room:",
        "max_tokens >= room:",
        (f"{IN_LANGUAGE}::test_what_fits_is_granted",),
    ),
    Mutant(
        ("error.context_length_exceeded", "prompt"),
        COMPLETIONS,
        'prompt_field: ClassVar[str] = "prompt"',
        'prompt_field: ClassVar[str] = "messages"',
        (f"{IN_FIELDS}::test_a_completions_prompt_that_does_not_fit_is_refused_by_its_name",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        LANGUAGE,
        "if len(text) > self.context_length * self._vocabulary.longest_token:",
        "if False:",
        (f"{IN_LANGUAGE}::test_text_that_cannot_fit_is_refused_unread",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        VLLM_JSON,
        'b"maximum context length", ContextLengthExceeded',
        'b"maximum context length", BackendError',
        (f"{IN_VLLM}::test_refusals",),
    ),
    Mutant(
        ("error.context_length_exceeded",),
        TRITON,
        '        ContextLengthExceeded,\n        "the prompt',
        '        BackendError,\n        "the prompt',
        (f"{IN_TRITON}::test_inband_errors_end_the_answer_by_their_text",),
    ),
    Mutant(("error.invalid_api_key",), TAXONOMY, 'code = "invalid_api_key"', 'code = "unauthorized"', TABLE_OF_ERRORS),
    Mutant(
        ("error.invalid_api_key",),
        ENVELOPE,
        "if pin is not None and operator_key is not None:",
        "if False:",
        (f"{IN_HEADERS}::test_with_an_operator_key_only_operators_pin",),
    ),
    Mutant(
        ("error.invalid_api_key",),
        ENVELOPE,
        "if not hmac.compare_digest(",
        "if not sent and not hmac.compare_digest(",
        (f"{IN_HEADERS}::test_with_an_operator_key_only_operators_pin",),
    ),
    Mutant(
        ("error.invalid_api_key",),
        ENVELOPE,
        "if pin is not None and operator_key is not None:",
        "if pin is not None:",
        (f"{IN_HEADERS}::test_a_pin_is_obeyed",),
    ),
    Mutant(("error.model_not_found",), TAXONOMY, 'code = "model_not_found"', 'code = "no_model"', TABLE_OF_ERRORS),
    Mutant(
        ("error.model_not_found",),
        TAXONOMY,
        "class ModelNotFound(GatewayError):\n    status = 404",
        "class ModelNotFound(GatewayError):\n    status = 400",
        BAD_INPUT,
    ),
    Mutant(("error.unknown_url",), ERRORS, 'code = "unknown_url"', 'code = "not_found"', WRONG_PATH),
    Mutant(
        ("error.unknown_url",),
        ERRORS,
        "class PathNotFound(GatewayError):\n    status = 404",
        "class PathNotFound(GatewayError):\n    status = 400",
        WRONG_PATH,
    ),
    Mutant(("error.method_not_allowed",), ERRORS, 'code = "method_not_allowed"', 'code = "method"', WRONG_PATH),
    Mutant(("error.method_not_allowed",), ERRORS, "status = 405", "status = 400", WRONG_PATH),
    Mutant(("error.method_not_allowed",), ERRORS, "error.allowed.encode())", 'b"GET, POST")', WRONG_PATH),
    Mutant(("error.request_too_large",), ERRORS, 'code = "request_too_large"', 'code = "too_large"', BAD_INPUT),
    Mutant(
        ("error.request_too_large",),
        DOWNSTREAM,
        "if error is None and turn.request.length > handler.intake.limits.max_body_bytes:",
        "if False:",
        (f"{IN_OUTLET}::test_a_body_too_long_is_refused_by_its_head_without_100_continue",),
    ),
    Mutant(
        ("error.request_too_large",),
        DOWNSTREAM,
        " or length > self._max_body_bytes:",
        ":",
        BAD_INPUT,
    ),
    Mutant(
        ("error.request_too_large",),
        DOWNSTREAM,
        "if len(turn.body) + len(data) > handler.intake.limits.max_body_bytes:",
        "if False:",
        (f"{IN_ERRORS}::test_a_body_that_grows_too_large_without_saying_so_is_refused",),
    ),
    Mutant(
        ("error.overloaded",),
        OFFLOAD,
        "while self.waiting > self._most_waiting:",
        "while False:",
        (f"{IN_OFFLOAD}::test_one_too_many_is_refused_at_once_and_the_others_are_not_disturbed",),
    ),
    Mutant(
        ("error.overloaded",),
        OFFLOAD,
        "set_exception(Overloaded(",
        "set_exception(RuntimeError(",
        (f"{IN_OFFLOAD}::test_one_too_many_is_refused_at_once_and_the_others_are_not_disturbed",),
    ),
    Mutant(("error.overloaded",), TAXONOMY, "status = 429", "status = 503", TABLE_OF_ERRORS),
    Mutant(("error.overloaded",), ERRORS, "case Overloaded() | ", "case ", TABLE_OF_ERRORS),
    Mutant(
        ("error.internal_error",),
        INFERENCE,
        "        # Outermost edge, as in _begin.\n        except Exception:\n"
        '            logger.exception("request %s failed", reply.request_id)\n',
        "        # Outermost edge, as in _begin.\n        except Exception:\n"
        '            logger.exception("a request failed")\n',
        (f"{IN_ERRORS}::test_a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",),
    ),
    Mutant(
        ("error.internal_error",),
        INFERENCE,
        "        # Outermost edge, as in _begin.\n        except Exception:\n"
        '            logger.exception("request %s failed", reply.request_id)\n'
        "            self._end(reply, InternalError(OUR_FAULT))",
        "        # Outermost edge, as in _begin.\n        except Exception as fault:\n"
        '            logger.exception("request %s failed", reply.request_id)\n'
        "            self._end(reply, InternalError(str(fault)))",
        (f"{IN_ERRORS}::test_a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",),
    ),
    Mutant(
        ("error.internal_error",),
        INFERENCE,
        "hears of it and the others do not.\n        except Exception:\n"
        '            logger.exception("request %s failed", reply.request_id)\n',
        "hears of it and the others do not.\n        except Exception:\n"
        '            logger.exception("a request failed")\n',
        (f"{IN_ERRORS}::test_a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",),
    ),
    Mutant(
        ("error.internal_error",),
        INFERENCE,
        "hears of it and the others do not.\n        except Exception:\n"
        '            logger.exception("request %s failed", reply.request_id)\n'
        "            self._end(reply, InternalError(OUR_FAULT))",
        "hears of it and the others do not.\n        except Exception as fault:\n"
        '            logger.exception("request %s failed", reply.request_id)\n'
        "            self._end(reply, InternalError(str(fault)))",
        (f"{IN_ERRORS}::test_a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",),
    ),
    Mutant(
        ("error.internal_error",),
        ANSWER,
        "must not end theirs.\n        except Exception:",
        "must not end theirs.\n        except ValueError:",
        (f"{IN_ANSWER}::test_a_fault_in_decoding_fails_the_answer_and_not_the_caller",),
    ),
    Mutant(
        ("error.backend_error",),
        TAXONOMY,
        'class BackendError(GatewayError):\n    status = 502\n    type = "backend_error"\n    code = "backend_error"',
        'class BackendError(GatewayError):\n    status = 500\n    type = "backend_error"\n    code = "engine_error"',
        TABLE_OF_ERRORS,
    ),
    Mutant(
        ("error.backend_error",),
        VLLM_JSON,
        'b"", BackendError, "{peer} failed"',
        'b"", BackendUnavailable, "{peer} failed"',
        (f"{IN_CONTRACT}::test_the_engines_own_errors_are_told_apart",),
    ),
    Mutant(
        ("error.backend_error",),
        TRITON,
        '    return BackendError(f"{peer} failed")',
        '    return BackendUnavailable(f"{peer} failed")',
        (f"{IN_CONTRACT}::test_the_engines_own_errors_are_told_apart",),
    ),
    Mutant(("error.backend_lost",), TAXONOMY, 'code = "backend_lost"', 'code = "backend_gone"', TABLE_OF_ERRORS),
    Mutant(
        ("error.backend_lost",),
        CALLS,
        "return (BackendLost if error.is_down else BackendError)(error.message)",
        "return BackendError(error.message)",
        (f"{IN_CONTRACT}::test_cut_after_the_first_token_is_an_error",),
    ),
    Mutant(
        ("error.backend_lost", "errors.retry"),
        CALLS,
        "if self._delivered and isinstance(error, BackendUnavailable):",
        "if False:",
        (f"{IN_CONTRACT}::test_cut_after_the_first_token_is_an_error",),
    ),
    Mutant(
        ("error.backend_protocol_error",),
        TAXONOMY,
        'class BackendProtocolError(BackendError):\n    code = "backend_protocol_error"',
        "class BackendProtocolError(BackendError):\n    pass",
        TABLE_OF_ERRORS,
    ),
    Mutant(
        ("error.backend_protocol_error",),
        VLLM_JSON,
        'return BackendProtocolError(f"{self._peer} sent an event',
        'return BackendError(f"{self._peer} sent an event',
        (f"{IN_VLLM}::test_bad_ends",),
    ),
    Mutant(
        ("error.backend_protocol_error",),
        TRITON,
        'return (), BackendProtocolError(f"{self._peer} sent output_ids',
        'return (), BackendError(f"{self._peer} sent output_ids',
        (f"{IN_TRITON}::test_a_response_that_cannot_be_read_is_a_protocol_error",),
    ),
    Mutant(
        ("error.backend_unavailable",),
        TAXONOMY,
        'code = "backend_unavailable"',
        'code = "backend_down"',
        (f"{IN_RETRY}::test_without_another_backend_the_client_hears_why",),
    ),
    Mutant(
        ("error.backend_unavailable", "error.backend_full"),
        ERRORS,
        " | BackendUnavailable() | ",
        " | ",
        (f"{IN_RETRY}::test_it_is_tried_once_only",),
    ),
    Mutant(
        ("error.backend_full",),
        TAXONOMY,
        'is_down = False\n    code = "backend_full"',
        "is_down = False",
        TABLE_OF_ERRORS,
    ),
    Mutant(
        ("error.backend_full",),
        TAXONOMY,
        'is_down = False\n    code = "backend_full"',
        'code = "backend_full"',
        (f"{IN_RETRY}::test_a_full_backend_is_not_taken_for_a_dead_one",),
    ),
    Mutant(
        ("error.backend_full",),
        VLLM_JSON,
        'range(429, 430), b"", BackendFull',
        'range(429, 430), b"", BackendUnavailable',
        (f"{IN_VLLM}::test_refusals",),
    ),
    Mutant(
        ("error.backend_full",),
        TRITON,
        '        BackendFull,\n        "{peer} is full",',
        '        BackendUnavailable,\n        "{peer} is full",',
        (f"{IN_TRITON}::test_inband_errors_end_the_answer_by_their_text",),
    ),
    Mutant(("error.shutting_down",), ERRORS, 'code = "shutting_down"', 'code = "stopping"', TABLE_OF_ERRORS),
    Mutant(
        ("error.shutting_down",),
        INFERENCE,
        '            reply.give_up(ShuttingDown("The gateway is shutting down."))',
        "            pass",
        (f"{IN_RELAY_LANE}::test_answers_under_way_end_when_the_gateway_gives_up",),
    ),
    Mutant(
        ("error.backend_timeout",),
        TAXONOMY,
        'status = 504\n    code = "backend_timeout"',
        'status = 502\n    code = "backend_timeout"',
        TABLE_OF_ERRORS,
    ),
    Mutant(
        ("error.backend_timeout",),
        CALLS,
        "        return BackendTimeout(",
        "        return BackendUnavailable(",
        (f"{IN_CONTRACT}::test_silence_beyond_the_limit_is_a_timeout_and_frees_the_engine",),
    ),
    Mutant(
        ("errors.retry",),
        TOKEN_LANE,
        "if may_retry and isinstance(error, BackendUnavailable | NeedRefused):",
        "if False:",
        (f"{IN_RETRY}::test_a_request_that_has_not_begun_is_answered_by_the_other_backend",),
    ),
    Mutant(
        ("errors.retry",),
        TOKEN_LANE,
        "self._reply.has_begun or self._avoid or ",
        "self._reply.has_begun or ",
        (f"{IN_RETRY}::test_it_is_tried_once_only",),
    ),
    Mutant(
        ("errors.retry",),
        TOKEN_LANE,
        "self._reply.has_begun or self._avoid or ",
        "self._avoid or ",
        (f"{IN_CHOICES}::test_a_stream_whose_first_choice_has_begun_is_not_tried_elsewhere",),
    ),
    Mutant(
        ("errors.retry",),
        TOKEN_LANE,
        "may_retry and isinstance(error, BackendUnavailable | NeedRefused):",
        "may_retry:",
        (f"{IN_RETRY}::test_other_errors_are_not_tried_elsewhere",),
    ),
    Mutant(
        ("errors.retry",),
        TOKEN_LANE,
        "self._avoid = frozenset({lease.route.backend})",
        'self._avoid = frozenset({"none"})',
        (f"{IN_RETRY}::test_a_full_backend_is_not_taken_for_a_dead_one",),
    ),
    Mutant(
        ("errors.event",),
        REPLY,
        "self.outlet.end(error_event(error))",
        "self.outlet.cut()",
        (f"{IN_ERRORS}::test_a_stream_that_failed_ends_after_the_event_without_done",),
    ),
    Mutant(
        ("errors.event",),
        REPLY,
        "self.outlet.end(error_event(error))",
        r'self.outlet.end(error_event(error) + b"data: [DONE]\n\n")',
        (f"{IN_ERRORS}::test_a_stream_that_failed_ends_after_the_event_without_done",),
    ),
    Mutant(
        ("errors.event",),
        REPLY,
        "        if not self.has_begun:\n            self.send_json(",
        "        if not self.has_begun and not self.was_placed:\n            self.send_json(",
        (f"{IN_ERRORS}::test_an_error_before_the_first_token_is_a_status",),
    ),
    Mutant(
        ("errors.event",),
        ANSWER,
        "        elif frames:\n            self._put",
        "        else:\n            self._put",
        (f"{IN_ERRORS}::test_an_error_after_two_tokens_of_a_folded_answer_is_a_status",),
    ),
    Mutant(
        ("errors.client_left",),
        REPLY,
        "self.settle(ClientLeft())",
        "pass",
        (f"{IN_DISCONNECT}::test_slot_is_freed_when_client_leaves_mid_stream",),
    ),
    Mutant(
        ("errors.client_left",),
        TOKEN_LANE,
        "            call.cancel()\n        self._running.clear()",
        "        self._running.clear()",
        (f"{IN_DISCONNECT}::test_slot_is_freed_when_client_leaves_mid_stream",),
    ),
    Mutant(
        ("errors.client_write_timeout_s",),
        TURN,
        "        if untaken < self._untaken:\n",
        "        if untaken <= self._untaken:\n",
        (f"{IN_DISCONNECT}::test_a_client_that_stops_reading_is_cut_off_in_time",),
    ),
]

BESIDE_VLLM = [
    Mutant(
        ("id",),
        DIALECTS,
        '"id": self.dialect.id_prefix + self.request_id,',
        '"id": self.dialect.id_prefix,',
        (f"{IN_HEADERS}::test_request_ids_are_ours_and_differ",),
    ),
    Mutant(
        ("id",),
        ENVELOPE,
        "self._count += 1",
        "self._count += 0",
        (f"{IN_HEADERS}::test_request_ids_are_ours_and_differ",),
    ),
    Mutant(("created",), INFERENCE, "int(time.time())", "0", (f"{IN_CHAT}::test_a_plain_answer",)),
    Mutant(
        ("system_fingerprint",),
        DIALECTS,
        '"system_fingerprint": None,',
        '"system_fingerprint": "crossover",',
        (f"{IN_FRAMES}::test_folded_chat_is_one_object",),
    ),
    Mutant(
        ("fields that are null",),
        DETAILS,
        '        if not self.wants_ids:\n            return b""',
        "        if not self.wants_ids:\n            return b',\"token_ids\":null'",
        (f"{IN_FRAMES}::test_folded_chat_is_one_object",),
    ),
    Mutant(
        ("stop_reason",),
        FRAMES,
        '"finish_reason":%b%b}\' % values',
        '"finish_reason":%b,"stop_reason":null%b}\' % values',
        (f"{IN_FRAMES}::test_folded_chat_is_one_object",),
    ),
    Mutant(
        ("refusal",),
        FRAMES,
        '        message["refusal"] = None\n',
        "",
        (f"{IN_FRAMES}::test_folded_chat_is_one_object",),
    ),
    Mutant(
        ("refusal",),
        DIALECTS,
        '"content":"","refusal":null}',
        '"content":""}',
        (f"{IN_FRAMES}::test_a_stream_is_what_openai_sends",),
    ),
    Mutant(
        ("refusal",),
        DETAILS,
        '{"content":[%b],"refusal":null}',
        '{"content":[%b]}',
        (f"{IN_FRAMES}::test_log_probabilities_of_a_chat_show_every_token_and_its_bytes",),
    ),
    Mutant(
        ("a character cut in half at the end",),
        DETOKENIZER,
        'utf_8_decode(self.pending, "replace", True)',
        'utf_8_decode(self.pending, "ignore", True)',
        (f"{IN_DETOKENIZER}::test_answer_that_ends_inside_a_character_shows_what_a_full_decode_shows",),
    ),
    Mutant(
        ("a character cut in half at the end",),
        DETOKENIZER,
        'return self._take(self._decode(self._context + self.pending)) if self.pending else ""',
        'return ""',
        (f"{IN_DETOKENIZER}::test_answer_that_ends_inside_a_character_shows_what_a_full_decode_shows",),
    ),
    Mutant(
        ("a character cut in half at the end",),
        DECODER,
        "return self._match(self._detokenizer.flush()) + self._matcher.flush()",
        "return self._matcher.flush()",
        (f"{IN_DETOKENIZER}::test_answer_that_ends_inside_a_character_shows_what_a_full_decode_shows",),
    ),
    Mutant(
        ("log-probabilities of parts of a character",),
        DETAILS,
        "self._reader.decode(self._spell(entry.token_id))",
        "self._show(entry.token_id)",
        (f"{IN_FRAMES}::test_log_probabilities_of_a_completion_have_offsets_into_the_whole_text",),
    ),
    Mutant(
        ("log-probabilities of parts of a character",),
        DETAILS,
        '"bytes": list(self._spell(token_id))}',
        '"bytes": list(token.encode())}',
        (f"{IN_FRAMES}::test_log_probabilities_of_a_chat_show_every_token_and_its_bytes",),
    ),
    Mutant(
        ("log-probabilities of parts of a character",),
        DETAILS,
        'self._spell(token_id).decode(errors="replace")',
        'self._spell(token_id).decode(errors="ignore")',
        (f"{IN_FRAMES}::test_an_alternative_that_is_part_of_a_character_is_a_replacement",),
    ),
    Mutant(
        ("prompt_token_ids of an echo",),
        FORM,
        "wants_ids=self.token_ids,\n"
        "            prompt_ids=prompt.token_ids if self.token_ids and not is_chat else None,",
        "wants_ids=self.token_ids or self.echo,\n"
        "            prompt_ids=prompt.token_ids if (self.token_ids or self.echo) and not is_chat else None,",
        (f"{IN_DETAILS}::test_an_echo_begins_with_the_prompt_and_its_log_probabilities",),
    ),
]

MUTANTS: list[Mutant] = [*HONOURED, *STREAMS, *USAGE, *TOKENS, *FAILURES, *BESIDE_VLLM]

"""Fields without effect, fields refused, fields inside others, the other endpoints."""

from tests.mutants.mutant import Mutant

GENERATION = "gateway/api/generation.py"
CHAT = "gateway/api/chat.py"
TEXT = "gateway/api/completions.py"
ASK = "gateway/api/ask.py"
RULES = "gateway/api/fields.py"
PARSE = "gateway/api/parse.py"
CONTENT = "gateway/api/content.py"
MESSAGES = "gateway/api/messages.py"
TOOLS = "gateway/api/tools.py"
FORMATS = "gateway/api/response_format.py"
INFERENCE = "gateway/api/inference.py"
REQUEST = "gateway/api/request.py"
ENVELOPE = "gateway/api/envelope.py"
MODELS = "gateway/api/models.py"
REPLY = "gateway/api/reply.py"
TURN = "gateway/api/turn.py"
CLIENT = "gateway/api/client.py"
DOWNSTREAM = "gateway/api/downstream.py"
API_ERRORS = "gateway/api/errors.py"
TOKEN_LANE = "gateway/api/token_lane.py"
RELAY_LANE = "gateway/api/relay_lane.py"
RELAY = "gateway/backends/relay.py"
HEADER = "gateway/header.py"
ERRORS = "gateway/errors.py"
REGISTRY = "gateway/metrics/registry.py"
SETTINGS = "gateway/settings/settings.py"
APP = "gateway/app.py"
SERVER = "gateway/commands/server.py"

FIELDS = "tests/api/test_fields.py::test_"
FAILURES = "tests/api/test_errors.py::test_"
BAD_CHAT = "tests/api/test_fields.py::test_a_bad_chat_field_is_named_as_the_client_wrote_it"
BAD_TEXT = "tests/api/test_fields.py::test_a_bad_completion_field_is_named"
UNHEARD = "tests/api/test_fields.py::test_neither_engine_nor_template_hears_of_a_field_without_effect"
REFUSED = "tests/api/test_fields.py::test_what_is_not_supported_is_refused_by_name"
LET_THROUGH = "tests/api/test_docs.py::test_of_a_refused_field_one_value_is_let_through_if_any"
RELAYED = "tests/api/test_fields.py::test_what_only_the_relay_lane_can_serve_goes_on_unread"
NEUTRAL = "tests/api/test_fields.py::test_values_that_ask_for_nothing_are_let_through"


def _ineffective(field: str, where: str, kind: str, unchecked: str, *effects: tuple[str, str, str]) -> list[Mutant]:
    """Its type no longer checked, the field refused, and (where, old, new) by which it has an effect after all."""
    declared = f"    {field}: {kind} | None = None"
    return [
        Mutant((field,), where, declared, f"    {field}: {unchecked} | None = None", (f"{BAD_CHAT}",)),
        Mutant((field,), where, declared, f"    {field}: Refused = None", (f"{UNHEARD}[{field}]",)),
        *(Mutant((field,), place, old, new, (f"{UNHEARD}[{field}]",)) for place, old, new in effects),
    ]


def _shown(value: str) -> tuple[str, str, str]:
    """The template gets it."""
    return CHAT, "variables = dict(self.chat_template_kwargs or {})", f"variables = dict({value})"


NO_EFFECT = [
    *_ineffective("user", GENERATION, "str", "object", _shown("self.chat_template_kwargs or {}, user=self.user")),
    *_ineffective(
        "metadata",
        GENERATION,
        "Labels",
        "dict[str, object]",
        _shown("{**(self.metadata or {}), **(self.chat_template_kwargs or {})}"),
    ),
    *_ineffective(
        "store",
        GENERATION,
        "bool",
        "object",
        (ASK, "token_ids=body.wants_token_ids,", "token_ids=body.wants_token_ids or bool(body.store),"),
    ),
    *_ineffective(
        "service_tier",
        GENERATION,
        'Literal["auto", "default", "flex", "scale", "priority", "fast"]',
        "str",
        (ASK, "priority=body.priority,", 'priority=body.priority - (body.service_tier == "priority"),'),
    ),
    *_ineffective(
        "safety_identifier",
        CHAT,
        "str",
        "object",
        _shown("self.chat_template_kwargs or {}, safety_identifier=self.safety_identifier"),
    ),
    *_ineffective(
        "prompt_cache_key",
        CHAT,
        "str",
        "object",
        (ASK, "pin=envelope.pin,", 'pin=envelope.pin or getattr(body, "prompt_cache_key", None),'),
    ),
    *_ineffective(
        "prompt_cache_options",
        CHAT,
        "Labels",
        "dict[str, object]",
        _shown("self.chat_template_kwargs or self.prompt_cache_options or {}"),
    ),
    *_ineffective(
        "prompt_cache_retention",
        CHAT,
        'Literal["in_memory", "24h"]',
        "str",
        (
            ASK,
            "priority=body.priority,",
            'priority=body.priority - (getattr(body, "prompt_cache_retention", None) == "24h"),',
        ),
    ),
    *_ineffective(
        "prediction",
        CHAT,
        "Prediction",
        "object",
        _shown("self.chat_template_kwargs or {}, prediction=self.prediction"),
    ),
    *_ineffective(
        "spaces_between_special_tokens",
        GENERATION,
        "bool",
        "object",
        (
            ASK,
            "shows_special=body.shows_special,",
            "shows_special=body.shows_special or bool(body.spaces_between_special_tokens),",
        ),
    ),
]


def _never(field: str, where: str) -> list[Mutant]:
    """Let through as if it were honoured, and dropped without a word."""
    return [Mutant((field,), where, f"    {field}: Refused = None", f"    {field}: object = None", (f"{REFUSED}",))]


def _only(field: str, where: str, value: str, test: str = REFUSED) -> list[Mutant]:
    """Dropped without a word, and refused whatever it asks for."""
    declared = f"    {field}: Annotated[object, Only({value})]"
    return [
        Mutant((field,), where, declared, f"    {field}: object", (test,)),
        Mutant((field,), where, declared, f"    {field}: Annotated[None, Only()]", (LET_THROUGH,)),
    ]


REFUSALS = [
    *_only("suffix", TEXT, '""', BAD_TEXT),
    Mutant(("echo",), GENERATION, "echo: Annotated[bool, Only(False)]", "echo: bool", (REFUSED,)),
    Mutant(
        ("echo",), GENERATION, "echo: Annotated[bool, Only(False)]", "echo: Annotated[bool, Only()]", (LET_THROUGH,)
    ),
    *_only("modalities", CHAT, '["text"]'),
    Mutant(("audio",), CHAT, 'document.get("audio") is not None', "False", (RELAYED,)),
    *_only("function_call", CHAT, '"none"'),
    *_never("functions", CHAT),
    *_never("moderation", CHAT),
    *_only("verbosity", CHAT, '"medium"'),
    *_never("web_search_options", CHAT),
    *_never("chat_template", CHAT),
    *_never("documents", CHAT),
    *_only("include_reasoning", CHAT, "True"),
    *_never("prompt_logprobs", GENERATION),
    *_only("use_beam_search", GENERATION, "False"),
    *_only("length_penalty", GENERATION, "1, 1.0"),
    Mutant(("length_penalty",), GENERATION, "Only(1, 1.0)", "Only(1)", (NEUTRAL,)),
    Mutant(("length_penalty",), GENERATION, "Only(1, 1.0)", "Only(1.0)", (LET_THROUGH,)),
    *_never("allowed_token_ids", GENERATION),
    *_only("bad_words", GENERATION, "[]"),
    *_never("truncate_prompt_tokens", GENERATION),
    *_only("return_tokens_as_token_ids", GENERATION, "False"),
]


def _rows(field: str, where: str, *rows: tuple[str, str, str]) -> list[Mutant]:
    """(old, new, test) each."""
    return [Mutant((field,), where, old, new, (test,)) for old, new, test in rows]


MIXED = "tests/api/test_mixed_lanes.py::test_"
PICTURE = f"{MIXED}a_picture_goes_on_as_it_came_and_the_reason_says_why"
BLIND = f"{MIXED}a_picture_that_no_engine_can_see_is_refused_by_its_place"
AS_IT_CAME = f"{MIXED}what_goes_on_is_json_whatever_its_client_calls_it_and_counts_its_choices"
UNTAKEN = f"{MIXED}a_path_that_no_engine_of_the_model_or_not_the_model_takes_is_refused"
WENT_ON = "request.target, lines, raw, pin, run, told, sequences, barred)"

RELAYED_BODIES = [
    *_rows("modalities", CHAT, ('if isinstance(modalities, list) and "audio" in modalities:', "if False:", RELAYED)),
    *_rows("messages", MESSAGES, ('if message.get("audio") is not None:', "if False:", RELAYED)),
    *_rows(
        "messages",
        PARSE,
        (
            "return body_type.unread(read_model(document), field)",
            "return validate(body_type, document)",
            RELAYED,
        ),
        (
            "read_model(document), field)",
            'str(document.get("model")), field)',
            f"{FIELDS}an_unread_body_still_names_its_model",
        ),
    ),
    *_rows(
        "messages",
        INFERENCE,
        ("if body is None or needs is not None:", "if body is None:", PICTURE),
        ("return {Need.RELAY: body.relay_field}", 'return {Need.RELAY: "messages"}', BLIND),
        ("return {Need.RELAY: body.relay_field}", "return NO_NEEDS", BLIND),
        (WENT_ON, "request.target, lines, orjson.dumps(document), pin, run, told, sequences, barred)", AS_IT_CAME),
        (WENT_ON, "request.target, lines, raw, pin, run, told)", AS_IT_CAME),
        ("JSON_TYPE)\n", "*request.lines)\n", AS_IT_CAME),
    ),
]

LARGEST = f"{FAILURES}a_body_may_be_as_large_as_it_says"
CHUNKED = "tests/api/test_outlet.py::test_a_chunked_body_too_long_is_refused_when_it_is"

RULES_OF_BODIES = [
    *_rows(
        "unknown fields",
        RULES,
        ('extra="forbid"', 'extra="ignore"', BAD_CHAT),
        ('extra="forbid"', 'extra="allow"', BAD_CHAT),
        ("if value is not None or name not in known}", "if value is not None}", BAD_CHAT),
    ),
    *_rows(
        "null",
        RULES,
        ("None not in fields.values():", "None not in ():", f"{FIELDS}null_means_absent_for_every_optional_field"),
        ("{field.alias or name for name, field", "{name for name, field", f"{FIELDS}a_bad_guide_is_named"),
    ),
    *_rows(
        "numbers and booleans",
        RULES,
        ("strict=True", "strict=False", BAD_CHAT),
        ("type(value) is type(neutral) and value == neutral", "value == neutral", REFUSED),
    ),
    *_rows(
        "content-type",
        INFERENCE,
        (
            "document = parse_json(raw,",
            'document = parse_json(raw if request.header(b"content-type") == "application/json" else b"",',
            "tests/api/test_errors.py::test_the_content_type_of_a_request_does_not_matter",
        ),
    ),
    *_rows(
        "limits.max_body_bytes",
        DOWNSTREAM,
        ("turn.request.length > handler.intake", "turn.request.length >= handler.intake", LARGEST),
        ("len(turn.body) + len(data) > handler", "len(turn.body) + len(data) >= handler", LARGEST),
    ),
    *_rows("limits.max_body_bytes", CLIENT, ("self._check_size(len(body) + len(data))", "pass", CHUNKED)),
]

ALLOWED = "gateway/api/allowed.py"
IN_BODY = "tests/api/test_allowed.py::test_"
MAY_NOT_SAY = f"{IN_BODY}what_a_chat_may_not_say_by_default_is_named"
MAY_NOT_FETCH = f"{IN_BODY}an_engine_may_fetch_nothing_else"
TO_ENGINES = "tests/api/test_allowed_bodies.py::test_"
SERVER_SIDE = "tests/backends/test_relay.py::test_"
LANE = "tests/api/test_relay_lane.py::test_"
OURS = f"{LANE}our_headers_are_there_and_the_engines_are_kept"
SENT_ON = "target, lines, raw, pin, run, NO_NEEDS, sequences, barred)"
NOT_SENT = "tests/api/test_request.py::test_what_speaks_of_the_connection_or_is_ours_does_not_go_on"
OWN_STATUS = f"{SERVER_SIDE}a_status_fields_and_body_pass_unchanged"
NOT_BACK = f"{SERVER_SIDE}fields_of_the_connection_do_not_come_back"
OF_THE_ENGINE = f"{SERVER_SIDE}a_status_that_speaks_of_the_engine_is_its_error"
FIRST_IS_STATUS = f"{SERVER_SIDE}an_error_that_comes_first_is_a_status"
FIRST_IS_ITS_OWN = f"{SERVER_SIDE}an_error_that_comes_first_and_is_the_engines_own_says_what_it_is"
ELSEWHERE = f"{LANE}what_one_engine_cannot_answer_another_does"
GOES_AWAY = f"{SERVER_SIDE}an_engine_that_goes_away"
BETWEEN = f"{LANE}an_engine_that_goes_away_between_events_is_an_error_event"
AMID = f"{LANE}an_engine_that_goes_away_in_the_middle_cuts_the_answer"
CUT_ANYWHERE = f"{SERVER_SIDE}an_answer_is_the_same_however_its_reads_are_cut"
SEEN = "tests/metrics/test_metrics.py::test_a_relayed_answer_"
HOPS = ("connection", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")

RELAYED_MODELS = [
    *_rows(
        "relayed models",
        SETTINGS,
        (
            "self.tokenizer is None or not any(",
            "self.tokenizer is None or not all(",
            "tests/settings/test_settings.py::test_a_model_is_relayed_if_nothing_here_could_take_its_tokens",
        ),
        (
            "self.tokenizer is None or not any(",
            "not any(",
            "tests/settings/test_settings.py::test_a_model_is_relayed_if_nothing_here_could_take_its_tokens",
        ),
    ),
    *_rows(
        "relayed models",
        INFERENCE,
        (
            "lines, target = request.lines, request.target\n",
            "lines, target = request.lines, request.target\n            parse_body(BODIES[request.path], document)\n",
            OURS,
        ),
        (SENT_ON, SENT_ON.replace("raw", "orjson.dumps(document)"), OURS),
        (SENT_ON, SENT_ON.replace("target", "request.path.encode()"), OURS),
        (SENT_ON, SENT_ON.replace("lines", "(JSON_TYPE,)"), OURS),
        (SENT_ON, SENT_ON.replace("sequences", "1"), f"{LANE}the_choices_of_a_request_count_as_so_many"),
        (SENT_ON, SENT_ON.replace("pin", "None"), f"{LANE}a_pinned_request_is_tried_nowhere_else"),
        (SENT_ON, SENT_ON.replace("run", "None"), f"{LANE}a_run_is_counted_apart_from_users_here_too"),
    ),
    *_rows(
        "relayed models",
        REQUEST,
        ('    b"host", b"expect"', '    b"expect"', NOT_SENT),
        ('b"host", b"expect"', 'b"host"', NOT_SENT),
        ('b"authorization", ', "", NOT_SENT),
        ('b"x-request-id", ', "", NOT_SENT),
        (', b"accept-encoding"', "", NOT_SENT),
        *((f'b"{name}",', "", NOT_SENT) for name in ("cookie", "x-api-key")),
    ),
    *_rows(
        "relayed models",
        HEADER,
        *((f'b"{name}",', "", NOT_SENT) for name in HOPS),
        ('b"keep-alive", b"proxy', 'b"proxy', NOT_SENT),
        ('b"content-length", ', "", NOT_SENT),
        ('if name == b"connection" and value.lower() not in USUAL_OPTIONS:', "if False:", NOT_SENT),
        ("for field in fields if field[0]", "for field in dict(fields).items() if field[0]", NOT_SENT),
    ),
    *_rows(
        "relayed models",
        ALLOWED,
        ("    if type(count) is not int or not", "    if not", f"{IN_BODY}choices_that_cannot_be_counted_are_refused"),
        ("        return choices * len(prompts)\n", "        return choices\n", f"{IN_BODY}choices_are_counted"),
        ('_count(document, "best_of")', "1", f"{IN_BODY}choices_are_counted"),
        ("if barred and (", "if len(barred) > 9 and (", f"{IN_BODY}a_body_that_nobody_may_get_is_refused"),
        ("if pin is None else pin in barred)", "if True else pin)", f"{IN_BODY}a_body_that_nobody_may_get_is_refused"),
        (
            "    return frozenset(barred)\n",
            "    return NOBODY\n",
            f"{TO_ENGINES}a_server_that_is_relayed_to_gets_what_a_vllm_beside_it_may_not",
        ),
        ("        if value is None:\n", "        if False:\n", f"{IN_BODY}what_a_chat_may_say_by_default"),
        ("    if name not in form.fields:\n", "    if False:\n", MAY_NOT_SAY),
        ("(taken := TAKEN.intersection(value))", "(taken := set(value) - TAKEN)", MAY_NOT_SAY),
        ("    if name in IN_PARTS and name not", "    if False and name not", MAY_NOT_SAY),
        ('if key == "type" and', "if False and", MAY_NOT_SAY),
        ("        places.extend(place.children())\n", "", MAY_NOT_SAY),
        ("if colon and scheme in media:", "if scheme in media:", MAY_NOT_FETCH),
        ("if found[3] != DEFAULT_PORTS[scheme] else None", "", f"{IN_BODY}an_engine_may_fetch_what_is_named"),
        ("{found[2].lower()}{port or ''}", "{found[2].lower()}", MAY_NOT_FETCH),
        ("re.IGNORECASE | re.ASCII", "re.IGNORECASE", MAY_NOT_FETCH),
    ),
    *_rows(
        "relayed models",
        RELAY,
        (
            "if self._kept_back:",
            "if False:",
            f"{TO_ENGINES}no_engine_gets_a_clients_keys_and_no_vllm_what_stands_for_a_field",
        ),
        ("sink.begin(status, _lines_back(", "sink.begin(200, _lines_back(", OWN_STATUS),
        (
            "sink.begin(self.status, _lines_back(",
            "sink.begin(200, _lines_back(",
            f"{SERVER_SIDE}a_status_is_kept_when_its_body_comes_in_pieces",
        ),
        ("_lines_back(head.fields), len(data)", "(), len(data)", OWN_STATUS),
        ("sink.finish(data)", "sink.finish(data.strip())", OWN_STATUS),
        ('frozenset({b"date", ', "frozenset({", NOT_BACK),
        ('b"date", b"server", ', 'b"date", ', NOT_BACK),
        (', b"x-request-id"})', "})", NOT_BACK),
        ("FULL = {HTTPStatus.TOO_MANY_REQUESTS, ", "FULL = {", OF_THE_ENGINE),
        ("FULL = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}", "FULL = {429}", OF_THE_ENGINE),
        ("AWAY = {HTTPStatus.BAD_GATEWAY, ", "AWAY = {", OF_THE_ENGINE),
        ("AWAY = {HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT}", "AWAY = {502}", OF_THE_ENGINE),
        ("        elif status in ELSEWHERE:\n", "        elif False:\n", OF_THE_ENGINE),
        ("error = _read_error(event)\n", "error = None\n", FIRST_IS_STATUS),
        ('sink.begin(status, [b"content-type', 'sink.begin(200, [b"content-type', FIRST_IS_STATUS),
        ("if status in ELSEWHERE or status >= 500:", "if status >= 500:", FIRST_IS_ITS_OWN),
        ("if status in ELSEWHERE or status >= 500:", "if status in ELSEWHERE:", FIRST_IS_ITS_OWN),
        ('error.get("code") or 500', 'error.get("code") or 400', FIRST_IS_ITS_OWN),
        ("BackendLost(error.message), may_append=self._is_between_events())", "BackendLost(error.message))", GOES_AWAY),
        ("may_append=self._is_between_events())", "may_append=True)", GOES_AWAY),
        ("if not self._is_stream or self._length is not None:", "if not self._is_stream:", GOES_AWAY),
        ("if start < 0:\n            return 0, 0", "if True:\n            return 0, 0", CUT_ANYWHERE),
        ("self.events -= 1", "pass", CUT_ANYWHERE),
    ),
    *_rows(
        "relayed models",
        RELAY_LANE,
        ("if isinstance(error, BackendUnavailable) and not self._avoid", "if False and not self._avoid", ELSEWHERE),
        ("self._avoid = frozenset({route.backend})", 'self._avoid = frozenset({"none"})', ELSEWHERE),
        ("and not self._avoid and", "and", f"{LANE}what_no_engine_can_answer_is_a_503"),
        ("self._reply.takes_events = may_append", "pass", BETWEEN),
        ("self._reply.takes_events = may_append", "self._reply.takes_events = True", AMID),
    ),
    *_rows("relayed models", REPLY, ("        elif self.takes_events:\n", "        elif True:\n", AMID)),
    *_rows(
        "relayed models",
        REGISTRY,
        (
            "prompt_tokens, completion_tokens = seen.usage\n",
            "prompt_tokens, completion_tokens = seen.usage[0], seen.usage[1] or seen.events\n",
            f"{SEEN}without_usage_has_events_and_no_tokens",
        ),
        (
            "count(pair.users, outcome, prompt_tokens, completion_tokens, seen.events)",
            "count(pair.users, outcome, prompt_tokens, completion_tokens)",
            f"{SEEN}counts_by_what_was_seen_of_it",
        ),
        (
            "count(pair.users, outcome, prompt_tokens, completion_tokens, seen.events)",
            "count(pair.users, outcome, 0, 0, seen.events)",
            f"{SEEN}counts_by_what_was_seen_of_it",
        ),
    ),
]

HEADERS_OF = "tests/api/test_headers.py::test_"
RETRIED = "tests/api/test_retry.py::test_"
RUN = f"{HEADERS_OF}a_run_id_may_be_of_its_alphabet_up_to_its_length"
NO_RUN = f"{HEADERS_OF}a_run_id_that_could_not_be_a_label_is_refused"
TIMING = f"{HEADERS_OF}server_timing_tells_the_gateways_time_and_the_engines"
WHERE_AND_WHY = f"{HEADERS_OF}every_answer_says_where_it_came_from_and_why"
KEYS = f"{HEADERS_OF}with_an_operator_key_only_operators_pin"

HEADERS = [
    *_rows("x-crossover-pin", ASK, ("pin=envelope.pin,", "", f"{HEADERS_OF}a_pin_is_obeyed")),
    *_rows(
        "x-crossover-pin",
        ENVELOPE,
        ("if pin is not None and operator_key is not None:", "if False:", KEYS),
        ("if pin is not None and operator_key is not None:", "if operator_key is not None:", KEYS),
        ('f"Bearer {operator_key}".encode()', 'f"Basic {operator_key}".encode()', KEYS),
    ),
    *_rows(
        "x-crossover-pin",
        TOKEN_LANE,
        ("self._avoid or request.pin)", "self._avoid)", f"{RETRIED}a_pinned_request_stays_where_it_was_sent"),
    ),
    *_rows(
        "x-crossover-pin",
        RELAY_LANE,
        (" and self._request.pin is None:", ":", f"{LANE}a_pinned_request_is_tried_nowhere_else"),
    ),
    *_rows(
        "x-crossover-pin",
        INFERENCE,
        (
            "NO_NEEDS if pin in lane.relayed_only else None",
            "None",
            f"{MIXED}a_pin_to_a_relayed_engine_is_obeyed_by_the_lane_that_it_has",
        ),
    ),
    *_rows(
        "x-crossover-pin",
        "gateway/routing/fleet.py",
        ("if request.pin in {None, name}", "if True", f"{MIXED}a_picture_pinned_to_an_engine_without_eyes_is_refused"),
    ),
    *_rows(
        "x-crossover-run",
        ENVELOPE,
        ("{1,128}", "{1,127}", RUN),
        ("{1,128}", "{1,129}", NO_RUN),
        ("{1,128}", "{0,128}", NO_RUN),
        ("[A-Za-z0-9._:-]", "[A-Za-z0-9.:-]", RUN),
        ("[A-Za-z0-9._:-]", "[A-Za-z0-9. _:-]", NO_RUN),
        ("not RUN_FORM.fullmatch(run)", "not RUN_FORM.match(run)", NO_RUN),
    ),
    *_rows("x-crossover-run", ASK, ("run=envelope.run,", "", f"{HEADERS_OF}a_run_is_counted_apart_from_users")),
    *_rows(
        "x-crossover-run",
        REGISTRY,
        (
            "if request.run is not None:  # a",
            "if False:  # a",
            "tests/metrics/test_metrics.py::test_load_test_runs_are_kept_out_of_users_figures",
        ),
        (
            "if request.run is not None:\n",
            "if False:\n",
            f"{SEEN}of_a_run_or_without_a_first_byte_has_no_latency",
        ),
    ),
    *_rows(
        "x-request-id",
        REPLY,
        (
            'f"x-request-id: {self.request_id}".encode()',
            'b"x-request-id: none"',
            f"{HEADERS_OF}answers_without_an_engine_have_an_id_too",
        ),
        ('f"x-request-id: {self.request_id}\\r\\nx-c', 'f"x-c', WHERE_AND_WHY),
    ),
    *_rows("x-request-id", ENVELOPE, ("self._count += 1", "pass", f"{HEADERS_OF}request_ids_are_ours_and_differ")),
    *_rows(
        "x-request-id",
        ASK,
        (
            "Head(body.dialect, envelope.request_id,",
            "Head(body.dialect, envelope.request_id[:8],",
            f"{HEADERS_OF}request_ids_are_ours_and_differ",
        ),
        ("if index else envelope.request_id,", 'if index else "1",', WHERE_AND_WHY),
    ),
    *_rows(
        "x-request-id",
        "gateway/backends/triton.py",
        (
            "{request.request_id}-{token_hex(4)}",
            "{token_hex(4)}",
            "tests/backends/test_triton.py::test_the_same_request_never_meets_itself_on_the_server",
        ),
    ),
    *_rows(
        "x-request-id",
        "gateway/backends/vllm.py",
        (
            "{request.request_id}-{token_hex(4)}",
            "{token_hex(4)}",
            "tests/backends/test_vllm.py::test_the_same_request_never_meets_itself_on_the_server",
        ),
    ),
    *_rows(
        "x-request-id",
        RELAY,
        (
            'own = f"x-request-id: {request.request_id}\\r\\n',
            'own = f"',
            f"{SERVER_SIDE}the_engine_sees_the_request_as_it_came_with_a_head_of_ours",
        ),
    ),
    *_rows(
        "server-timing",
        REPLY,
        ("started - self.arrived", "self._clock() - self.arrived", TIMING),
        ("self._clock() - started", "self._clock() - self.arrived", TIMING),
        ("gateway;dur={1000 * (", "gateway;dur={1 * (", TIMING),
        ("self._started = self._clock()", "pass", TIMING),
        (
            "        if not self.has_begun:\n",
            "        self._route = None\n        if not self.has_begun:\n",
            f"{FAILURES}an_error_before_the_first_token_is_a_status",
        ),
    ),
    *_rows(
        "x-crossover-backend",
        REPLY,
        ("x-crossover-backend: {route.backend}", "x-crossover-backend: engine", WHERE_AND_WHY),
    ),
    *_rows(
        "x-crossover-reason",
        REPLY,
        ("x-crossover-reason: {route.reason}", "x-crossover-reason: policy", WHERE_AND_WHY),
    ),
]

LISTED = "tests/api/test_completions.py::test_the_models_are_listed"
ALLOWED = f"{MIXED}a_path_that_the_operator_allows_goes_on_and_no_other_does"

ENDPOINTS = [
    *_rows(
        "GET /v1/models",
        MODELS,
        ('described["max_model_len"] = length', "pass", LISTED),
        ("for model in self._context_lengths]", 'for model in ("other",)]', LISTED),
        (
            "if model not in self._context_lengths:",
            "if False:",
            "tests/api/test_completions.py::test_an_unknown_model_is_not_found",
        ),
    ),
    *_rows(
        "GET /v1/models",
        APP,
        ("lane.language.context_length if isinstance(lane, TokenLane) else None", "None", LISTED),
    ),
    *_rows(
        "GET /v1/models",
        INFERENCE,
        ("self._models.encode_one(model) if model else self._models", "self._models", LISTED),
    ),
    *_rows(
        "relay_paths",
        SETTINGS,
        (
            'relay_paths: frozenset[RelayPath] = frozenset({"/v1/embeddings"})',
            "relay_paths: frozenset[RelayPath] = frozenset()",
            ALLOWED,
        ),
    ),
    *_rows(
        "relay_paths",
        INFERENCE,
        ("*BODIES, *TEXTS, *relayed", "*BODIES, *TEXTS", ALLOWED),
        ("if path not in lane.relay_paths:", "if False:", UNTAKEN),
        ('return {Need.RELAY: "model"}', "return NO_NEEDS", UNTAKEN),
    ),
    *_rows(
        "relay_paths",
        APP,
        (
            "if (open_relay := ENGINE_KINDS[backend.kind].open_relay) is not None",
            "if (open_relay := ENGINE_KINDS[backend.kind].open_relay) and not backend.takes_tokens",
            "tests/api/test_app.py::test_a_vllm_gets_a_clients_own_body_for_what_takes_no_tokens",
        ),
    ),
    *_rows(
        "model",
        INFERENCE,
        (
            "raise unknown_model(read_model(document))",
            'raise InvalidRequest("Unknown.", param="model")',
            f"{FAILURES}unknown_models_raise_the_clients_own_class",
        ),
    ),
]

HERE = "tests/api/test_serve.py::test_"

STOPPING = _rows(
    "stopping",
    SERVER,
    (
        "in (signal.SIGINT, signal.SIGTERM):",
        "in (signal.SIGINT,):",
        f"{HERE}an_answer_under_way_ends_before_the_server_does",
    ),
    (
        "in (signal.SIGINT, signal.SIGTERM):",
        "in (signal.SIGTERM,):",
        f"{HERE}the_operators_routes_stand_beside_the_inference_routes",
    ),
    ("call_later(self._drain_timeout_s,", "call_later(0,", f"{HERE}an_answer_under_way_ends_before_the_server_does"),
    (
        "call_later(self._drain_timeout_s,",
        "call_later(99,",
        f"{HERE}what_does_not_end_in_the_drain_time_ends_with_an_error_event",
    ),
)

MUTANTS = [
    *NO_EFFECT, *REFUSALS, *RELAYED_BODIES, *RULES_OF_BODIES, *RELAYED_MODELS, *HEADERS, *ENDPOINTS, *STOPPING,
]  # fmt: skip

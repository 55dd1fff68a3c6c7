"""Messages, tools, guided decoding, templates, reasoning."""

from tests.mutants.mutant import Mutant

# Code
ASK, CHAT, CONTENT, FIELDS = (f"gateway/api/{name}.py" for name in ("ask", "chat", "content", "fields"))
FORM, FRAMES, GENERATION = (f"gateway/api/{name}.py" for name in ("form", "frames", "generation"))
CHECKS, INFERENCE, MESSAGES = (f"gateway/api/{name}.py" for name in ("guide_checks", "inference", "messages"))
FORMAT, TOOLS = "gateway/api/response_format.py", "gateway/api/tools.py"
HABITS, LANGUAGE, PARTS = (f"gateway/language/{name}.py" for name in ("habits", "model", "parts"))
REASONING, PARSER, TEMPLATE = (f"gateway/language/{name}.py" for name in ("reasoning", "reply_parser", "template"))
CALLS, FORMATS = "gateway/language/tool_calls.py", "gateway/language/tool_formats.py"
GUIDE, JSON = "gateway/language/tool_guide.py", "gateway/language/tool_json.py"
TRITON, TRITON_CONFIG = "gateway/backends/triton_tensors.py", "gateway/backends/triton_config.py"
VLLM, VLLM_JSON = "gateway/backends/vllm.py", "gateway/backends/vllm_json.py"
APP, FLEET, NEEDS = "gateway/app.py", "gateway/routing/fleet.py", "gateway/routing/needs.py"
FILE = "gateway/settings/settings.py"

# Tests
BODY, ASKED = "tests/api/test_chat_body.py", "tests/api/test_fields.py"
READ = f"{BODY}::test_a_template_reads_a_message_as"
BAD_MESSAGE = f"{BODY}::test_a_bad_message_is_named_with_its_path"
SHOWN_TOOLS = f"{BODY}::test_tools_are_offered_as_vllms_templates_get_them"
CHOICE = f"{BODY}::test_a_tool_choice_says_what_may_be_called_and_whether_it_must"
FORCED = f"{BODY}::test_a_forced_call_is_guided_and_needs_a_backend_that_can"
BAD_TOOLS = f"{BODY}::test_bad_tools_are_named"
PROMPT = f"{BODY}::test_tools_and_calls_are_in_the_prompt"
VARIABLES = f"{BODY}::test_a_template_gets_the_variables_that_vllms_gets"
CONTINUED = f"{BODY}::test_the_last_message_may_be_continued"
HEADER = f"{BODY}::test_the_assistants_header_may_be_left_out"
BAD_FIELD = f"{ASKED}::test_a_bad_chat_field_is_named_as_the_client_wrote_it"
RELAYED = f"{ASKED}::test_what_only_the_relay_lane_can_serve_goes_on_unread"
GUIDED = f"{ASKED}::test_what_an_answer_must_match_becomes_a_guide"
BAD_GUIDE = f"{ASKED}::test_a_bad_guide_is_named"
NEEDED = f"{ASKED}::test_a_body_needs_what_it_asks_for_by_the_field_that_asks"
BOUNDED = f"{ASKED}::test_json_of_a_clients_own_has_so_many_values_in_so_many_levels"
LENGTH = f"{ASKED}::test_a_guide_has_so_many_characters"
HEARD = "tests/api/test_calls_and_reasoning.py"
FRAMED = "tests/api/test_frames.py"
TRIED = "tests/api/test_guide_checks.py::test_a_guide_that_cannot_be_followed_is_refused_before_any_engine"
OPERATED = "tests/api/test_app.py::test_the_operator_says_how_a_model_writes_calls_and_reasoning"
SETTINGS = "tests/settings/test_settings.py"
MODEL, RENDERED = "tests/language/test_model.py", "tests/language/test_template.py"
PARSED = "tests/language/test_tool_calls.py"
WHOLE = f"{PARSED}::test_answer_has_the_same_parts_wherever_it_is_cut"
ANY_CALLS = f"{PARSED}::test_any_well_formed_calls_are_read_however_they_are_cut"
FORCED_READ = f"{PARSED}::test_forced_call_is_read_whatever_the_models_own_format"
THOUGHT = f"{PARSED}::test_reasoning_is_told_apart"
KNOWN = "tests/language/test_tool_formats.py::test_format_is_the_one_in_which_the_template_writes"
SCHEMA = "tests/language/test_tool_guide.py"
TENSORS = "tests/backends/test_triton.py::test_a_guide_is_two_texts"
KEYS = "tests/backends/test_vllm.py::test_a_guide_goes_under_its_kind"
ABLE = "tests/backends/test_capabilities.py"
PLACED = "tests/routing/test_needs.py"

ROLES = [
    Mutant(("messages",), MESSAGES, "list[AnyMessage], Field(min_length=1, ", "list[AnyMessage], Field(", (BAD_FIELD,)),
    Mutant(
        ("messages",),
        MESSAGES,
        "max_length=MOST_ITEMS, fail_fast=True)]\n\n\ndef",
        "fail_fast=True)]\n\n\ndef",
        (BAD_FIELD,),
    ),
    Mutant(("messages",), FIELDS, "MOST_ITEMS = 32_768", "MOST_ITEMS = 32_769", (BAD_FIELD,)),
    Mutant(("messages.role",), MESSAGES, 'if role == "function":', "if False:", (BAD_FIELD,)),
    Mutant(("messages.role",), MESSAGES, '"role": self.role, ', '"role": "user", ', (READ,)),
    Mutant(
        ("messages.role",),
        TEMPLATE,
        'flat["role"] = "system"',
        "pass",
        (f"{RENDERED}::test_developer_is_system_where_a_template_knows_no_developer",),
    ),
    Mutant(
        ("messages.role",),
        TEMPLATE,
        ' == "developer" and not self._knows_developer:',
        ' == "developer":',
        (f"{RENDERED}::test_developer_is_system_where_a_template_knows_no_developer",),
    ),
    Mutant(
        ("messages.name",),
        MESSAGES,
        '"content": plain_content(self.content), **_named(self.name)}',
        '"content": plain_content(self.content)}',
        (READ,),
    ),
    Mutant(("messages.name",), MESSAGES, "self.tool_call_id, **_named(self.name)}", "self.tool_call_id}", (READ,)),
    Mutant(("messages.name",), MESSAGES, "self._said(), **_named(self.name)}", "self._said()}", (READ,)),
    Mutant(
        ("messages.name",),
        MESSAGES,
        "content: Content\n    name: NonEmpty | None = None\n\n    def plain(self) -> Mapping[str, object]:\n"
        '        return {"role": self',
        "content: Content\n    name: str | None = None\n\n    def plain(self) -> Mapping[str, object]:\n"
        '        return {"role": self',
        (BAD_FIELD,),
    ),
    Mutant(("messages.tool_call_id",), MESSAGES, ', "tool_call_id": self.tool_call_id', "", (READ,)),
    Mutant(
        ("messages.tool_call_id",), MESSAGES, "tool_call_id: NonEmpty", 'tool_call_id: NonEmpty = "x"', (BAD_MESSAGE,)
    ),
    Mutant(("messages.function_call",), MESSAGES, "function_call: Refused", "function_call: object", (BAD_MESSAGE,)),
    Mutant(("messages.annotations",), MESSAGES, "Annotated[object, Only([])]", "object", (BAD_MESSAGE,)),
    Mutant(("messages.annotations",), MESSAGES, "Annotated[object, Only([])]", "Refused", (READ,)),
]

PARTS_OF_CONTENT = [
    Mutant(("messages.content",), CONTENT, '[{"type": "text", "text": part.text} for part in content]', "[]", (READ,)),
    Mutant(("messages.content",), CONTENT, "_SOME = Field(min_length=1, ", "_SOME = Field(", (BAD_FIELD,)),
    Mutant(
        ("messages.content",),
        TEMPLATE,
        'return "\\n".join(',
        'return "".join(',
        (f"{MODEL}::test_text_parts_are_joined_by_newlines",),
    ),
    Mutant(
        ("messages.content",),
        TEMPLATE,
        "for index, part in enumerate(parts))",
        'for index, part in enumerate(parts) if part["text"])',
        (f"{BODY}::test_an_empty_text_part_is_a_line_of_its_own",),
    ),
    Mutant(
        ("messages.content",),
        TEMPLATE,
        'case None if message.get("role") == "assistant":',
        'case None if message.get("role") == "user":',
        (f"{MODEL}::test_assistant_without_content_says_nothing",),
    ),
    Mutant(
        ("messages.content",),
        MESSAGES,
        "    content: SpokenContent | None = None",
        "    content: SpokenContent",
        (READ,),
    ),
    Mutant(("messages.content.refusal",), MESSAGES, "content: SpokenContent |", "content: Content |", (READ,)),
    Mutant(("messages.content.refusal",), CONTENT, "return self.refusal", 'return ""', (READ,)),
    Mutant(("messages.content.refusal",), CONTENT, ' or kind == "refusal"', "", (BAD_FIELD,)),
    Mutant(("messages.refusal",), MESSAGES, "return self.refusal", "return None", (READ,)),
    Mutant(
        ("messages.refusal",), MESSAGES, "        if self.content is None:\n", "        if self.refusal:\n", (READ,)
    ),
    Mutant(
        ("messages.content.prompt_cache_breakpoint",),
        CONTENT,
        "prompt_cache_breakpoint: Labels | None",
        "prompt_cache_break: Labels | None",
        (READ,),
    ),
    *(
        Mutant((f"messages.content.{kind}",), CONTENT, f'    "{kind}",\n', "", (RELAYED,))
        for kind in (
            "image_url",
            "input_audio",
            "file",
            "video_url",
            "audio_url",
            "image_embeds",
            "audio_embeds",
            "prompt_embeds",
        )
    ),
    Mutant(("messages.audio",), MESSAGES, 'if message.get("audio") is not None:', "if False:", (RELAYED,)),
    Mutant(("modalities",), CHAT, 'isinstance(modalities, list) and "audio" in modalities', "False", (RELAYED,)),
    Mutant(("audio",), CHAT, 'if document.get("audio") is not None:', "if False:", (RELAYED,)),
    Mutant(
        ("messages.content.image_url", "model"),
        "gateway/api/parse.py",
        "return body_type.unread(read_model(document), field)",
        "return body_type.unread(validate(body_type, document).model, field)",
        (RELAYED,),
    ),
    Mutant(
        ("messages.content.image_url",),
        INFERENCE,
        "        return {Need.RELAY: body.relay_field}\n",
        "        return None\n",
        ("tests/api/test_mixed_lanes.py::test_a_picture_goes_on_as_it_came_and_the_reason_says_why",),
    ),
]

EARLIER_ANSWERS = [
    Mutant(("messages.tool_calls",), MESSAGES, "if self.tool_calls:", "if False:", (READ, PROMPT)),
    Mutant(("messages.tool_calls",), MESSAGES, "if not isinstance(found, dict):", "if False:", (BAD_MESSAGE,)),
    Mutant(
        ("messages.tool_calls",),
        MESSAGES,
        'json.loads(arguments or "{}", parse_constant=_refuse_constant)',
        'json.loads(arguments or "{}")',
        (BAD_MESSAGE,),
    ),
    Mutant(("messages.tool_calls",), MESSAGES, 'arguments or "{}"', "arguments", (READ,)),
    Mutant(
        ("messages.tool_calls",), MESSAGES, "Annotated[JsonObject, BeforeValidator(_read_arguments)]", "str", (READ,)
    ),
    Mutant(
        ("messages.tool_calls",),
        MESSAGES,
        "Annotated[JsonObject, BeforeValidator(_read_arguments)]",
        "Annotated[dict[str, object], BeforeValidator(_read_arguments)]",
        (BOUNDED,),
    ),
    Mutant(("messages.tool_calls", "tools"), MESSAGES, 'if kind == "custom":', "if False:", (BAD_MESSAGE,)),
    Mutant(("messages.reasoning",), MESSAGES, "if reasoning is not None:", "if False:", (READ,)),
    Mutant(
        ("messages.reasoning",),
        MESSAGES,
        "self.reasoning if self.reasoning is not None else self.reasoning_content",
        "self.reasoning_content",
        (READ,),
    ),
    Mutant(
        ("messages.reasoning_content",),
        MESSAGES,
        "self.reasoning if self.reasoning is not None else self.reasoning_content",
        "self.reasoning",
        (READ,),
    ),
    Mutant(
        ("messages.reasoning", "messages.reasoning_content"),
        TEMPLATE,
        'return {"thinking": reasoning, **flat, "reasoning_content": reasoning}',
        "return flat",
        (f"{RENDERED}::test_chat_is_rendered_as_by_transformers",),
    ),
]

OFFERED = [
    Mutant(("tools",), TOOLS, "MOST_TOOLS = 128", "MOST_TOOLS = 129", (BAD_TOOLS,)),
    Mutant(
        ("tools",), TOOLS, "list[ToolDefinition], Field(min_length=1, ", "list[ToolDefinition], Field(", (BAD_TOOLS,)
    ),
    Mutant(("tools",), TOOLS, '"description": function.description, ', '"description": None, ', (PROMPT,)),
    Mutant(("tools",), TOOLS, '"parameters": function.parameters}', '"parameters": None}', (SHOWN_TOOLS,)),
    Mutant(("tools",), TOOLS, '{"strict": function.strict}', "{}", (SHOWN_TOOLS,)),
    Mutant(("tools",), TOOLS, 'schema.get("type", "object") != "object"', "False", (BAD_TOOLS,)),
    Mutant(
        ("tools",),
        TOOLS,
        "Annotated[JsonObject, BeforeValidator(_check_parameters)]",
        "Annotated[dict[str, object], BeforeValidator(_check_parameters)]",
        (BOUNDED,),
    ),
    Mutant(("tools",), CHAT, "tools=None if plan is None else plan.definitions", "tools=None", (PROMPT,)),
    Mutant(
        ("tools",),
        CHAT,
        "if not language.takes_tools:",
        "if False:",
        (f"{BODY}::test_tools_are_refused_for_a_model_that_is_not_shown_any",),
    ),
    Mutant(
        ("tools",),
        CHAT,
        "if plan.forced is None and language.tool_format is None:",
        "if False:",
        (f"{BODY}::test_a_model_whose_calls_nobody_can_read_may_only_be_forced_to_call",),
    ),
    Mutant(
        ("tools", "tool_choice"),
        CHAT,
        "if plan.forced is None and language.tool_format is None:",
        "if language.tool_format is None:",
        (f"{BODY}::test_a_model_whose_calls_nobody_can_read_may_only_be_forced_to_call",),
    ),
    Mutant(
        ("tools",),
        TEMPLATE,
        "self._plain if how.tools is None else self._with_tools",
        "self._plain",
        (f"{RENDERED}::test_model_with_a_template_for_tools_uses_it_for_them",),
    ),
    Mutant(
        ("tools",),
        TEMPLATE,
        'not in {"", self.sample()}',
        'not in {""}',
        (f"{RENDERED}::test_template_that_ignores_tools_is_known",),
    ),
    Mutant(
        ("tools",),
        ASK,
        "tool_format=None if plan is None else language.tool_format",
        "tool_format=None",
        (f"{HEARD}::test_a_model_that_may_call_is_heard",),
    ),
    Mutant(
        ("tools",),
        ASK,
        "tool_format=None if plan is None else language.tool_format",
        "tool_format=language.tool_format",
        (f"{HEARD}::test_where_nothing_may_be_called_a_call_is_text",),
    ),
]

CHOSEN = [
    Mutant(
        ("tool_choice",),
        TOOLS,
        "return tool_guide(self.tools, self.forced, parallel",
        "return tool_guide(self.tools, self.forced or Forced(), parallel",
        (FORCED,),
    ),
    Mutant(
        ("tool_choice", "tools"),
        TOOLS,
        "return tool_guide(self.tools, self.forced, parallel",
        "own = Forced() if any(tool.strict for tool in self.tools) else None\n"
        "        return tool_guide(self.tools, self.forced or own, parallel",
        (f"{BODY}::test_what_a_model_that_may_call_makes_of_its_arguments_is_its_own_however_strict",),
    ),
    Mutant(
        ("tool_choice",),
        TOOLS,
        '    if choice == "none":\n        return None\n',
        "",
        (
            f"{BODY}::test_tools_that_may_not_be_called_are_no_plan",
            f"{BODY}::test_tools_that_may_not_be_called_are_not_in_the_prompt",
        ),
    ),
    Mutant(("tool_choice",), TOOLS, 'case "required" | ChoiceObject(', "case ChoiceObject(", (CHOICE,)),
    Mutant(("tool_choice",), TOOLS, "return Forced(name)", "return Forced()", (CHOICE, FORCED)),
    Mutant(
        ("tool_choice",),
        TOOLS,
        "        if choice is None:\n            return None\n",
        "        return None\n",
        (BAD_TOOLS,),
    ),
    Mutant(("tool_choice",), TOOLS, "function.name not in known", "False", (BAD_TOOLS,)),
    Mutant(("tool_choice",), TOOLS, "if is_chosen and value is None:", "if False:", (BAD_TOOLS,)),
    Mutant(("tool_choice",), TOOLS, "if value is not None and not is_chosen:", "if False:", (BAD_TOOLS,)),
    Mutant(
        ("tool_choice.allowed_tools",),
        TOOLS,
        ' | ChoiceObject(allowed_tools=AllowedTools(mode="required"))',
        "",
        (CHOICE,),
    ),
    Mutant(
        ("tool_choice.allowed_tools",),
        TOOLS,
        "[definition for definition in definitions if definition.function.name in chosen]",
        "definitions",
        (CHOICE,),
    ),
    Mutant(
        ("tool_choice.allowed_tools",),
        TOOLS,
        'Annotated[Literal["function", "allowed_tools"], ',
        'Annotated[Literal["function"], ',
        (CHOICE,),
    ),
    Mutant(("tool_choice",), GUIDE, "_arguments_of(tools, forced.name)", "_any_of(tools, parallel)", (FORCED,)),
    Mutant(
        ("tool_choice",),
        GUIDE,
        '"$defs": {place: _move(_parameters(tool), ',
        '"$defs": {place: _move(_NO_PARAMETERS, ',
        (f"{SCHEMA}::test_any_call_is_an_array_of_names_each_with_its_own_parameters",),
    ),
    Mutant(
        ("tool_choice",),
        GUIDE,
        '"enum": [tool.name]',
        '"minLength": 1',
        (f"{SCHEMA}::test_any_call_is_an_array_of_names_each_with_its_own_parameters",),
    ),
    Mutant(
        ("tool_choice",),
        GUIDE,
        '"minItems": 1,',
        "",
        (f"{SCHEMA}::test_any_call_is_an_array_of_names_each_with_its_own_parameters",),
    ),
    Mutant(
        ("tool_choice",),
        GUIDE,
        "return place + value[1:]",
        "return value",
        (f"{SCHEMA}::test_references_lead_to_the_tools_own_definitions",),
    ),
    Mutant(
        ("tool_choice",),
        CHAT,
        "return self.text_guide if self.tool_plan is None else self.tool_plan.guide()",
        "return self.text_guide",
        (FORCED,),
    ),
    Mutant(
        ("tool_choice",),
        CHAT,
        'return self.text_guide_field if self.tool_plan is None else "tool_choice"',
        "return self.text_guide_field",
        (FORCED,),
    ),
    Mutant(
        ("tool_choice",),
        ASK,
        "forced=None if plan is None else plan.forced",
        "forced=None",
        (
            f"{HEARD}::test_calls_that_were_required_end_with_tool_calls",
            f"{HEARD}::test_the_call_of_a_named_function_is_its_arguments_and_ends_with_stop",
        ),
    ),
    Mutant(
        ("tool_choice",),
        FORM,
        "return self.forced is None or self.forced.name is None",
        "return True",
        (f"{HEARD}::test_the_call_of_a_named_function_is_its_arguments_and_ends_with_stop",),
    ),
    Mutant(
        ("tool_choice",),
        FORM,
        "return self.forced is None or self.forced.name is None",
        "return self.forced is None",
        (f"{HEARD}::test_calls_that_were_required_end_with_tool_calls",),
    ),
    Mutant(("tool_choice",), PARSER, "if forced is None else _read_forced(text, writer, forced)", "", (FORCED_READ,)),
    Mutant(
        ("parallel_tool_calls",),
        TOOLS,
        "self.forced, parallel=self.parallel)",
        "self.forced)",
        (f"{BODY}::test_one_call_at_a_time_is_part_of_the_guide",),
    ),
    Mutant(
        ("parallel_tool_calls",),
        CHAT,
        "parallel=self.parallel_tool_calls",
        "parallel=True",
        (
            f"{BODY}::test_one_call_at_a_time_is_part_of_the_guide",
            f"{HEARD}::test_of_calls_beyond_the_one_that_was_allowed_none_is_told",
        ),
    ),
    Mutant(
        ("parallel_tool_calls",),
        CHAT,
        "parallel_tool_calls: bool = True",
        "parallel_tool_calls: bool = False",
        (CHOICE,),
    ),
    Mutant(
        ("parallel_tool_calls",),
        ASK,
        "is_one_call=plan is not None and not plan.parallel",
        "is_one_call=False",
        (f"{HEARD}::test_of_calls_beyond_the_one_that_was_allowed_none_is_told",),
    ),
    Mutant(
        ("parallel_tool_calls",),
        FRAMES,
        "or part.index == 0]",
        "or part.index >= 0]",
        (f"{HEARD}::test_of_calls_beyond_the_one_that_was_allowed_none_is_told",),
    ),
]

HELD_TO_A_FORM = [
    Mutant(
        ("response_format", "structured_outputs"),
        ASK,
        "guide=body.guide,",
        "guide=None,",
        (f"{ASKED}::test_sampling_fields_reach_the_engine_request",),
    ),
    Mutant(("response_format",), FORMAT, 'if self.type == "json_object" else None', "", (GUIDED,)),
    Mutant(
        ("response_format",), FORMAT, 'Guide(GuideKind.JSON) if self.type == "json_object" else None', "None", (GUIDED,)
    ),
    Mutant(
        ("response_format",),
        FORMAT,
        "if self.json_schema is not None:\n",
        "if self.json_schema is not None and self.json_schema.strict:\n",
        (GUIDED,),
    ),
    Mutant(
        ("response_format",),
        FORMAT,
        "return schema_guide(self.json_schema.schema_)",
        "return Guide(GuideKind.JSON)",
        (GUIDED,),
    ),
    Mutant(("response_format",), FORMAT, "    name: NonEmpty\n", '    name: NonEmpty = "x"\n', (BAD_GUIDE,)),
    Mutant(
        ("response_format",),
        FORMAT,
        'Annotated[JsonObject, Field(alias="schema")]',
        'Annotated[JsonObject, Field(alias="schema", default_factory=dict)]',
        (BAD_GUIDE,),
    ),
    Mutant(
        ("response_format",),
        FORMAT,
        'Annotated[JsonObject, Field(alias="schema")]',
        'Annotated[dict[str, object], Field(alias="schema")]',
        (BOUNDED,),
    ),
    Mutant(("response_format",), FORMAT, 'if kind == "json_schema" and schema is None:', "if False:", (BAD_GUIDE,)),
    Mutant(("response_format",), FORMAT, 'if kind != "json_schema" and schema is not None:', "if False:", (BAD_GUIDE,)),
    Mutant(
        ("response_format", "structured_outputs"),
        CHAT,
        "if self.tool_plan is not None and self.text_guide is not None:",
        "if False:",
        (BAD_TOOLS,),
    ),
    Mutant(
        ("response_format", "tool_choice"),
        CHAT,
        "if self.tool_plan is not None and self.text_guide is not None:",
        "if self.tools is not None and self.text_guide is not None:",
        (f"{BODY}::test_a_guide_beside_tools_that_may_not_be_called_is_fine",),
    ),
    Mutant(
        ("response_format", "structured_outputs"),
        GENERATION,
        "if self.structured_outputs is not None and is_formatted:",
        "if False:",
        (BAD_GUIDE,),
    ),
    Mutant(
        ("response_format", "structured_outputs"),
        GENERATION,
        "self.response_format is not None and self.response_format.guide() is not None",
        "self.response_format is not None",
        (GUIDED,),
    ),
    Mutant(
        ("structured_outputs",),
        GENERATION,
        "self.structured_outputs or self.response_format",
        "self.response_format",
        (GUIDED,),
    ),
    Mutant(
        ("response_format",),
        GENERATION,
        "self.structured_outputs or self.response_format",
        "self.structured_outputs",
        (GUIDED,),
    ),
    Mutant(("structured_outputs",), FORMAT, "!= 1:", "== 0:", (BAD_GUIDE,)),
    Mutant(("structured_outputs",), FORMAT, "!= 1:", "> 1:", (BAD_GUIDE,)),
    Mutant(("structured_outputs",), FORMAT, "self.json_object or None,", "self.json_object,", (BAD_GUIDE,)),
    Mutant(
        ("structured_outputs.json",),
        FORMAT,
        "return schema_guide(self.json_)",
        "return Guide(GuideKind.JSON)",
        (GUIDED,),
    ),
    Mutant(("structured_outputs.json",), FORMAT, "BeforeValidator(_read_schema), ", "", (GUIDED,)),
    Mutant(
        ("structured_outputs.json",),
        FORMAT,
        "Annotated[JsonObject | None, BeforeValidator(_read_schema)",
        "Annotated[dict[str, object] | None, BeforeValidator(_read_schema)",
        (BOUNDED,),
    ),
    Mutant(
        ("structured_outputs.json_object",),
        FORMAT,
        "        return Guide(GuideKind.JSON)\n",
        '        return Guide(GuideKind.JSON_SCHEMA, "{}")\n',
        (GUIDED,),
    ),
    Mutant(
        ("structured_outputs.regex",),
        FORMAT,
        "Guide(GuideKind.REGEX, self.regex)",
        "Guide(GuideKind.GRAMMAR, self.regex)",
        (GUIDED,),
    ),
    Mutant(("structured_outputs.regex",), FORMAT, "regex: Pattern |", "regex: str |", (BAD_GUIDE,)),
    Mutant(
        ("structured_outputs.grammar",),
        FORMAT,
        "Guide(GuideKind.GRAMMAR, self.grammar)",
        "Guide(GuideKind.REGEX, self.grammar)",
        (GUIDED,),
    ),
    Mutant(("structured_outputs.grammar",), FORMAT, "grammar: Pattern |", "grammar: str |", (BAD_GUIDE,)),
    Mutant(("structured_outputs.choice",), FORMAT, 'METACHARACTERS.sub(r"\\\\\\g<0>", choice)', "choice", (GUIDED,)),
    Mutant(("structured_outputs.choice",), FORMAT, "MOST_CHOICES = 1024", "MOST_CHOICES = 1025", (BAD_GUIDE,)),
    Mutant(
        ("structured_outputs.choice",),
        FORMAT,
        "list[NonEmpty], Field(min_length=1, ",
        "list[NonEmpty], Field(",
        (BAD_GUIDE,),
    ),
    Mutant(("structured_outputs.choice",), FORMAT, "list[NonEmpty]", "list[str]", (BAD_GUIDE,)),
    *(
        Mutant(
            (f"structured_outputs.{key}",),
            FORMAT,
            f"    {key}: {kind} = None",
            f"    {key}: object = None",
            (BAD_GUIDE,),
        )
        for key, kind in (
            ("structural_tag", "Refused"),
            ("whitespace_pattern", "Refused"),
            ("disable_any_whitespace", "Annotated[object, Only(False)]"),
            ("disable_additional_properties", "Annotated[object, Only(False)]"),
        )
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        ASK,
        "len(body.guide.text) > MOST_GUIDE_CHARACTERS",
        "False",
        (LENGTH,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        ASK,
        "MOST_GUIDE_CHARACTERS = 65_536",
        "MOST_GUIDE_CHARACTERS = 65_535",
        (LENGTH,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        ASK,
        "MOST_GUIDE_CHARACTERS = 65_536",
        "MOST_GUIDE_CHARACTERS = 65_537",
        (LENGTH,),
    ),
    Mutant(
        ("tool_choice",),
        ASK,
        "raise InvalidRequest(reason, param=body.guide_field)",
        "raise InvalidRequest(reason, param=body.text_guide_field)",
        (f"{ASKED}::test_the_guide_of_calls_has_no_more_characters_either",),
    ),
    Mutant(
        ("chat_template_kwargs", "tools", "response_format"),
        FIELDS,
        "MOST_ITEMS = 32_768",
        "MOST_ITEMS = 32_767",
        (BOUNDED,),
    ),
    Mutant(
        ("chat_template_kwargs", "tools", "response_format"),
        FIELDS,
        "values > MOST_ITEMS",
        "values > 2 * MOST_ITEMS",
        (BOUNDED,),
    ),
    Mutant(
        ("chat_template_kwargs", "tools", "response_format"), FIELDS, "MOST_LEVELS = 64", "MOST_LEVELS = 63", (BOUNDED,)
    ),
    Mutant(
        ("chat_template_kwargs", "tools", "response_format"), FIELDS, "MOST_LEVELS = 64", "MOST_LEVELS = 65", (BOUNDED,)
    ),
    Mutant(
        ("response_format", "structured_outputs"),
        GENERATION,
        'return "response_format" if self.structured_outputs is None else "structured_outputs"',
        'return "response_format"',
        (NEEDED,),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        GENERATION,
        "if self.guide is not None:",
        "if False:",
        (NEEDED, FORCED),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        GENERATION,
        "asked[Need.GUIDE] = self.guide_field",
        'asked[Need.GUIDE] = "guided_decoding"',
        (NEEDED,),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        INFERENCE,
        "            if work.request.params.guide is not None:\n                await",
        "            if False:\n                await",
        (TRIED,),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        INFERENCE,
        "elif work.request.params.guide is not None:",
        "elif False:",
        (TRIED,),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        CHECKS,
        "        if verdict.fault:\n            field",
        "        if False:\n            field",
        (TRIED,),
    ),
    Mutant(
        ("response_format", "structured_outputs", "tool_choice"),
        CHECKS,
        "field = request.needs[Need.GUIDE]",
        'field = "response_format"',
        (TRIED,),
    ),
]

TOLD_TO_ENGINES = [
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON,
        "    if params.guide is not None:\n",
        "    if False:\n",
        (TENSORS,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON,
        '    yield _text("guided_decoding_guide_type", guide.kind)\n',
        "",
        (TENSORS,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON,
        '_text("guided_decoding_guide", guide.text)',
        '_text("guided_decoding_guide", "{}")',
        (TENSORS,),
    ),
    Mutant(
        ("structured_outputs.json_object", "response_format"),
        TRITON,
        "OBJECT if params.guide.kind is GuideKind.JSON else params.guide",
        "params.guide",
        (TENSORS,),
    ),
    Mutant(
        ("structured_outputs.grammar",),
        "gateway/core.py",
        'GRAMMAR = "ebnf_grammar"',
        'GRAMMAR = "grammar"',
        (TENSORS,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        VLLM_JSON,
        "    if params.guide is not None:\n",
        "    if False:\n",
        (KEYS,),
    ),
    Mutant(
        ("structured_outputs", "response_format"),
        VLLM_JSON,
        'sampling["structured_outputs"]',
        'sampling["guided_decoding"]',
        (KEYS,),
    ),
    Mutant(
        ("structured_outputs.json_object",), VLLM_JSON, 'return {"json_object": True}', 'return {"json": "{}"}', (KEYS,)
    ),
    Mutant(("structured_outputs.regex",), VLLM_JSON, 'GuideKind.REGEX: "regex"', 'GuideKind.REGEX: "grammar"', (KEYS,)),
    Mutant(
        ("structured_outputs.grammar",),
        VLLM_JSON,
        'GuideKind.GRAMMAR: "grammar"',
        'GuideKind.GRAMMAR: "regex"',
        (KEYS,),
    ),
    Mutant(
        ("structured_outputs.json", "response_format", "tool_choice"),
        VLLM_JSON,
        'GuideKind.JSON_SCHEMA: "json"',
        'GuideKind.JSON_SCHEMA: "choice"',
        (KEYS,),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON,
        "if if_refused is not None and any(word in lowered for word in GUIDE_WORDS):",
        "if False:",
        ("tests/backends/test_triton.py::test_an_error_may_be_what_only_an_engine_can_judge",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        VLLM_JSON,
        "if if_refused is not None and status in REFUSED:",
        "if False:",
        ("tests/backends/test_vllm.py::test_a_refusal_may_be_what_only_an_engine_can_judge",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON_CONFIG,
        "if GUIDE in inputs and follows_guides:",
        "if GUIDE in inputs:",
        (f"{ABLE}::test_a_triton_model_can_do_what_its_configuration_declares",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON_CONFIG,
        "if config.backend == CPP_BACKEND",
        "if False",
        (f"{ABLE}::test_the_cpp_backend_follows_guides_where_both_of_its_parameters_are_filled_in",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON_CONFIG,
        "value and not value.startswith(PLACEHOLDER)",
        "value",
        (f"{ABLE}::test_a_triton_model_can_do_what_its_configuration_declares",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        TRITON_CONFIG,
        "        yield Need.GUIDE\n",
        "        pass\n",
        (f"{ABLE}::test_a_triton_model_can_do_what_its_configuration_declares",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        VLLM,
        "Need.MIN_P, Need.GUIDE, ",
        "Need.MIN_P, ",
        (f"{ABLE}::test_vllm_can_do_all_but_what_needs_a_flag",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        "gateway/backends/needs.py",
        "return (own | granted) - denied",
        "return own | granted",
        (f"{ABLE}::test_the_operator_knows_better",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        FLEET,
        "        if route.backend not in lacking:\n",
        "        if True:\n",
        (f"{PLACED}::test_who_lacks_a_need_is_no_candidate_whatever_the_load",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        NEEDS,
        'return InvalidRequest(f"{field!r} is not supported by {by}.", param=field)',
        'return InvalidRequest(f"{need!r} is not supported by {by}.", param=need)',
        (f"{PLACED}::test_the_field_named_is_the_clients_own",),
    ),
    Mutant(
        ("structured_outputs", "response_format", "tool_choice"),
        FLEET,
        "raise make_refusal(",
        "make_refusal(",
        (f"{PLACED}::test_what_no_backend_can_do_is_a_bad_request_that_names_the_field",),
    ),
]

RENDERING = [
    *(
        Mutant(("reasoning_effort",), CHAT, old, new, (VARIABLES,))
        for old, new in (
            ('Literal["none", "minimal", ', 'Literal["minimal", '),
            ('Literal["none", "minimal", ', 'Literal["none", '),
            ('"low", "medium", ', '"medium", '),
            ('"low", "medium", ', '"low", '),
            ('"high", "xhigh", "max"]', '"xhigh", "max"]'),
            ('"high", "xhigh", "max"]', '"high", "max"]'),
            ('"high", "xhigh", "max"]', '"high", "xhigh"]'),
            ('            variables["reasoning_effort"] = self.reasoning_effort\n', ""),
            ('variables.setdefault("enable_thinking", self.reasoning_effort != "none")', "pass"),
            ('self.reasoning_effort != "none")', "True)"),
            (
                'variables.setdefault("enable_thinking", self.reasoning_effort != "none")',
                'variables["enable_thinking"] = self.reasoning_effort != "none"',
            ),
        )
    ),
    Mutant(("chat_template_kwargs",), CHAT, "dict(self.chat_template_kwargs or {})", "{}", (VARIABLES,)),
    Mutant(("chat_template_kwargs",), TEMPLATE, "{**self._names, **how.variables}", "{**self._names}", (VARIABLES,)),
    *(
        Mutant(("chat_template_kwargs",), CHAT, f'    "{name}",\n', "", (BAD_FIELD,))
        for name in (
            "messages",
            "conversation",
            "tools",
            "documents",
            "chat_template",
            "tokenize",
            "add_generation_prompt",
            "continue_final_message",
        )
    ),
    Mutant(
        ("chat_template_kwargs",),
        CHAT,
        "Annotated[JsonObject, BeforeValidator(_refuse_taken)]",
        "Annotated[dict[str, object], BeforeValidator(_refuse_taken)]",
        (BOUNDED,),
    ),
    Mutant(
        ("add_generation_prompt",),
        CHAT,
        "        return self.add_generation_prompt\n",
        "        return True\n",
        (HEADER,),
    ),
    Mutant(
        ("add_generation_prompt",),
        CHAT,
        "return not self.continue_final_message",
        "return False",
        (PROMPT,),
    ),
    Mutant(
        ("add_generation_prompt", "continue_final_message"),
        CHAT,
        "return not self.continue_final_message",
        "return True",
        (f"{BODY}::test_a_template_is_told_whether_the_assistants_header_follows",),
    ),
    Mutant(
        ("add_generation_prompt", "continue_final_message"),
        CHAT,
        'if adds and info.data.get("continue_final_message"):',
        "if False:",
        (BAD_FIELD,),
    ),
    Mutant(
        ("add_generation_prompt",),
        TEMPLATE,
        "add_generation_prompt=how.add_generation_prompt",
        "add_generation_prompt=True",
        (HEADER,),
    ),
    Mutant(
        ("continue_final_message",),
        CHAT,
        "continue_final_message=self.continue_final_message",
        "continue_final_message=False",
        (CONTINUED,),
    ),
    Mutant(("continue_final_message",), TEMPLATE, "if not how.continue_final_message:", "if True:", (CONTINUED,)),
    Mutant(
        ("continue_final_message",),
        TEMPLATE,
        "return text[:end] if text.startswith(_OPEN_END, end) else text[:end].rstrip()",
        "return text[:end].rstrip()",
        (f"{RENDERED}::test_last_message_is_left_open_as_by_transformers",),
    ),
    Mutant(
        ("messages", "prompt", "tools", "reasoning_effort"),
        CHAT,
        "return [language.render_chat(messages, how, ",
        "return [language.render_chat(messages[-1:], how, ",
        (PROMPT,),
    ),
]

THINKING = [
    Mutant(
        ("reasoning",),
        ASK,
        "body.dialect is CHAT and language.reasons and body.guide is None",
        "False",
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(
        ("reasoning",),
        ASK,
        "body.dialect is CHAT and language.reasons",
        "language.reasons",
        (f"{HEARD}::test_a_completion_is_all_text",),
    ),
    Mutant(
        ("reasoning", "response_format", "structured_outputs"),
        ASK,
        "language.reasons and body.guide is None",
        "language.reasons",
        (f"{HEARD}::test_an_answer_that_is_held_to_a_form_has_no_reasoning",),
    ),
    Mutant(
        ("reasoning",),
        ASK,
        "starts_in_reasoning=reasons and language.starts_in_reasoning(prompt)",
        "starts_in_reasoning=False",
        (f"{HEARD}::test_a_template_may_have_opened_the_reasoning",),
    ),
    Mutant(
        ("reasoning",),
        LANGUAGE,
        "text.rfind(REASONING_START) > text.rfind(REASONING_END)",
        "REASONING_START in text",
        (f"{MODEL}::test_a_prompt_that_ends_inside_reasoning_is_known",),
    ),
    Mutant(
        ("reasoning",),
        LANGUAGE,
        "lambda token_id: token_id not in borders, reversed",
        "lambda token_id: True, reversed",
        (f"{MODEL}::test_a_prompt_that_ends_inside_reasoning_is_known",),
    ),
    Mutant(
        ("reasoning",),
        LANGUAGE,
        "(*markers, *REASONING_MARKERS)",
        "markers",
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(
        ("reasoning",),
        FORM,
        "shows_markers=self.parsing is not None",
        "shows_markers=False",
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(
        ("reasoning",),
        FORM,
        "reasoning=self.reasons,",
        "reasoning=False,",
        (f"{HEARD}::test_a_call_may_follow_reasoning",),
    ),
    Mutant(
        ("reasoning",),
        REASONING,
        "read_until(text, REASONING_END, writer.reasoning)",
        "read_until(text, REASONING_END, writer.content)",
        (THOUGHT,),
    ),
    Mutant(("reasoning",), REASONING, "if not is_tagged and not is_open:", "if not is_open:", (THOUGHT,)),
    Mutant(("reasoning",), REASONING, "if not is_tagged and not is_open:", "if not is_tagged:", (THOUGHT,)),
    Mutant(
        ("reasoning", "tool_choice"),
        PARSER,
        "is_open=starts_in_reasoning and forced is None",
        "is_open=starts_in_reasoning",
        (f"{PARSED}::test_guided_answer_does_not_start_in_reasoning",),
    ),
    Mutant(
        ("reasoning", "reasoning_content"),
        FRAMES,
        "message[self._show.reasoning.decode()] = thought",
        'message["reasoning"] = thought',
        (f"{FRAMED}::test_folded_calls_are_whole",),
    ),
    Mutant(
        ("reasoning", "reasoning_content"),
        FRAMES,
        "(self._show.reasoning, orjson.dumps(text))",
        '(b"reasoning", orjson.dumps(text))',
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(
        ("reasoning",),
        FRAMES,
        "        if thought:\n",
        "        if True:\n",
        (f"{HEARD}::test_where_nothing_may_be_called_a_call_is_text",),
    ),
    Mutant(
        ("reasoning_field",),
        ASK,
        "reasoning=reasoning_field.encode()",
        'reasoning=b"reasoning"',
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(
        ("reasoning_field",),
        FORM,
        "reasoning=self.reasoning,",
        "",
        (f"{HEARD}::test_reasoning_has_a_field_of_its_own",),
    ),
    Mutant(("reasoning_field",), INFERENCE, "envelope, lane.reasoning_field)", "envelope)", (OPERATED,)),
    Mutant(("reasoning_field",), APP, "model.relay_paths, model.reasoning_field)", "model.relay_paths)", (OPERATED,)),
    Mutant(
        ("reasoning_field",),
        FILE,
        'reasoning_field: ReasoningField = "reasoning"',
        'reasoning_field: ReasoningField = "reasoning_content"',
        (f"{SETTINGS}::test_a_models_parsers_and_paths_and_the_streams_are_read",),
    ),
    Mutant(
        ("reasoning_parser",),
        HABITS,
        "find_reasoning(template) if reasoning_parser == AUTO else reasoning_parser != NONE",
        "find_reasoning(template)",
        (f"{MODEL}::test_parsers_are_the_templates_unless_they_are_set",),
    ),
    Mutant(
        ("reasoning_parser",),
        HABITS,
        "find_reasoning(template) if reasoning_parser == AUTO else reasoning_parser != NONE",
        "reasoning_parser not in {AUTO, NONE}",
        (f"{MODEL}::test_parsers_are_the_templates_unless_they_are_set",),
    ),
    Mutant(
        ("reasoning_parser",),
        FORMATS,
        "return REASONING_START in template_source or REASONING_END in template_source",
        "return REASONING_START in template_source",
        (KNOWN,),
    ),
    Mutant(("reasoning_parser",), APP, "        reasoning_parser=model.reasoning_parser,\n", "", (OPERATED,)),
    Mutant(("tool_parser",), APP, "        tool_parser=model.tool_parser,\n", "", (OPERATED,)),
    Mutant(
        ("tool_parser",),
        HABITS,
        "None if tool_parser == NONE else ToolFormat(tool_parser)",
        "find_tool_format(template)",
        (f"{MODEL}::test_parsers_are_the_templates_unless_they_are_set",),
    ),
]

# How each family of models writes calls, and how they leave; streamed and whole give the same.
FAMILIES = [
    Mutant(("tool_calls",), CALLS, "        text.hold(back=len(HERMES_START))\n", "        text.hold()\n", (WHOLE,)),
    Mutant(("tool_calls",), CALLS, "    yield from read_literal(text, HERMES_END)\n", "", (WHOLE,)),
    Mutant(
        ("tool_calls",),
        CALLS,
        "    while (yield from read_until(text, HERMES_START, writer.content)):",
        "    if (yield from read_until(text, HERMES_START, writer.content)):",
        (WHOLE, ANY_CALLS),
    ),
    Mutant(
        ("tool_calls",),
        FORMATS,
        "None if any(mark in template_source for mark in _OTHER_CALLS) else ToolFormat.HERMES",
        "ToolFormat.HERMES",
        (KNOWN,),
    ),
    Mutant(("tool_calls",), CALLS, "needs_arguments=not is_tagged", "needs_arguments=False", (WHOLE,)),
    Mutant(("tool_calls",), CALLS, '        yield from read_literal(text, ";")\n', "", (WHOLE, ANY_CALLS)),
    Mutant(("tool_calls",), CALLS, "yield from read_literal(text, LLAMA_TAG)", "False", (WHOLE,)),
    Mutant(("tool_calls",), FORMATS, " and '\"parameters\"' in template_source", "", (KNOWN,)),
    Mutant(("tool_calls",), CALLS, '        case "[":\n', '        case "<":\n', (WHOLE, ANY_CALLS)),
    Mutant(("tool_calls",), CALLS, '        case "{":\n', '        case "<":\n', (WHOLE,)),
    Mutant(("tool_calls",), CALLS, "        yield from read_run(text, _NAME, ignore)\n", "        pass\n", (WHOLE,)),
    Mutant(("tool_calls",), CALLS, "    yield from read_literal(text, MISTRAL_ARGUMENTS)\n", "", (WHOLE,)),
    Mutant(
        ("tool_calls",),
        FORMATS,
        "ToolFormat.MISTRAL: (MISTRAL_CALLS, MISTRAL_ID, MISTRAL_ARGUMENTS)",
        "ToolFormat.MISTRAL: ()",
        ("tests/language/test_decoder.py::test_only_the_markers_of_tool_calls_are_seen_by_their_parser",),
    ),
    Mutant(
        ("tool_calls.id",),
        FORMATS,
        "if tool_format is ToolFormat.MISTRAL:",
        "if False:",
        (f"{PARSED}::test_mistrals_ids_are_nine_alphanumerics",),
    ),
    Mutant(
        ("tool_calls.id",),
        FORMATS,
        'f"call_{secrets.token_hex(12)}"',
        'f"chatcmpl-tool-{secrets.token_hex(8)}"',
        (f"{PARSED}::test_calls_are_counted_and_each_has_an_id_of_its_own",),
    ),
    Mutant(
        ("tool_calls",),
        CALLS,
        "    yield from _or_content(text, writer, _read_list(text, writer))\n",
        "",
        (FORCED_READ,),
    ),
    Mutant(
        ("tool_calls",),
        CALLS,
        '        following = yield from expect(text, ",]")',
        '        following = yield from expect(text, "]")',
        (FORCED_READ,),
    ),
    Mutant(
        ("tool_calls",),
        CALLS,
        "_read_arguments(text, writer, name))",
        '_read_arguments(text, writer, "f"))',
        (FORCED_READ,),
    ),
    Mutant(("tool_calls",), JSON, 'key in {"arguments", "parameters"}', 'key == "arguments"', (WHOLE,)),
    Mutant(("tool_calls",), JSON, 'key in {"arguments", "parameters"}', 'key == "parameters"', (WHOLE,)),
    Mutant(
        ("tool_calls",),
        JSON,
        '            self._writer.arguments("".join(self._early))\n',
        "            pass\n",
        (WHOLE,),
    ),
    Mutant(("tool_calls",), JSON, '        self._writer.arguments("{}")\n', "", (WHOLE,)),
    # Cut off, a call is the same streamed or not: what was told of it stays.
    Mutant(("tool_calls",), JSON, "        if not call.has_begun:\n            raise", "        raise", (WHOLE,)),
    Mutant(
        ("tool_calls",),
        JSON,
        "            self._is_in_string = not self._is_in_string",
        "            self._is_in_string = False",
        (WHOLE,),
    ),
    Mutant(("tool_calls",), CALLS, "        writer.content(text.release())\n", "        text.release()\n", (WHOLE,)),
    Mutant(
        ("tool_calls",),
        PARTS,
        "                self._space.append(text)\n                return\n",
        "                pass\n",
        (WHOLE,),
    ),
    Mutant(
        ("tool_calls", "finish_reason"),
        FRAMES,
        "return TOOL_CALLS if has_called and reason is FinishReason.STOP else",
        "return TOOL_CALLS if has_called else",
        (f"{FRAMED}::test_an_answer_cut_short_says_length_whatever_it_called",),
    ),
    Mutant(
        ("tool_calls", "finish_reason"),
        FRAMES,
        "return TOOL_CALLS if has_called and reason is FinishReason.STOP else orjson.dumps(reason)",
        "return orjson.dumps(reason)",
        (f"{FRAMED}::test_folded_calls_are_whole", f"{FRAMED}::test_calls_and_reasoning_leave_each_as_openai_sends_it"),
    ),
    Mutant(
        ("tool_calls",),
        FRAMES,
        'orjson.dumps({"index": index, "function": {"arguments": text}})',
        'orjson.dumps({"index": 0, "function": {"arguments": text}})',
        (f"{HEARD}::test_a_model_that_may_call_is_heard",),
    ),
    Mutant(
        ("tool_calls",),
        FRAMES,
        '"".join(arguments[index])',
        "arguments[index][-1]",
        (f"{FRAMED}::test_folded_calls_are_whole",),
    ),
    Mutant(
        ("tool_calls",),
        FRAMES,
        'text or (None if calls or thought else "")',
        "text",
        (f"{HEARD}::test_calls_that_were_required_end_with_tool_calls",),
    ),
    Mutant(
        ("tool_calls",),
        FRAMES,
        "        if calls:\n",
        "        if True:\n",
        (f"{HEARD}::test_where_nothing_may_be_called_a_call_is_text",),
    ),
]

MUTANTS = [
    *ROLES,
    *PARTS_OF_CONTENT,
    *EARLIER_ANSWERS,
    *OFFERED,
    *CHOSEN,
    *HELD_TO_A_FORM,
    *TOLD_TO_ENGINES,
    *RENDERING,
    *THINKING,
    *FAMILIES,
]

"""Fields without effect, fields refused, fields inside others, the other endpoints."""

from tests.mutants.mutant import Mutant

GENERATION = "gateway/api/generation.py"
CHAT = "gateway/api/chat.py"
TEXT = "gateway/api/completions.py"
ASK = "gateway/api/ask.py"
RULES = "gateway/api/fields.py"
PARSE = "gateway/api/parse.py"

BAD_CHAT = "tests/api/test_fields.py::test_a_bad_chat_field_is_named_as_the_client_wrote_it"
BAD_TEXT = "tests/api/test_fields.py::test_a_bad_completion_field_is_named"
UNHEARD = "tests/api/test_fields.py::test_neither_engine_nor_template_hears_of_a_field_without_effect"
REFUSED = "tests/api/test_fields.py::test_what_is_not_supported_is_refused_by_name"
LET_THROUGH = "tests/api/test_docs.py::test_of_a_refused_field_one_value_is_let_through_if_any"
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
        (
            CHAT,
            "messages = [message.plain() for message in self.messages]",
            "messages = [message.plain() for message in self.messages]\n"
            "        if self.prediction is not None:\n"
            '            messages.append({"role": "assistant", "content": self.prediction.content})',
        ),
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
    declared = f"    {field}: Annotated[object, Only({value})] = None"
    return [
        Mutant((field,), where, declared, f"    {field}: object = None", (test,)),
        Mutant((field,), where, declared, f"    {field}: Annotated[None, Only()] = None", (LET_THROUGH,)),
    ]


REFUSALS = [
    *_only("suffix", TEXT, '""', BAD_TEXT),
    Mutant(("echo",), GENERATION, "echo: Annotated[bool, Only(False)] = False", "echo: bool = False", (REFUSED,)),
    Mutant(
        ("echo",), GENERATION, "echo: Annotated[bool, Only(False)]", "echo: Annotated[bool, Only()]", (LET_THROUGH,)
    ),
    *_only("modalities", CHAT, '["text"]'),
    Mutant(
        ("audio",),
        CHAT,
        'if document.get("audio") is not None:',
        "if False:",
        (RELAYED := ("tests/api/test_fields.py::test_what_only_the_relay_lane_can_serve_goes_on_unread"),),
    ),
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

MUTANTS = [*NO_EFFECT, *REFUSALS]

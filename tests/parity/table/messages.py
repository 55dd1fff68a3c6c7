"""What a chat's messages may be: roles, parts, names, turns, Unicode, a message to continue."""

from tests.parity.case import Case, Same, assistant, chat, system, user

FRANCE = "What is the capital of France?"
PARIS = Same("The capital of France is Paris.", "stop")


def part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


CASES: tuple[Case, ...] = (
    chat("capital", FRANCE, PARIS),
    chat("system message", [system("Answer briefly."), user(FRANCE)], PARIS),
    chat("developer message", [{"role": "developer", "content": "Answer briefly."}, user(FRANCE)], PARIS),
    chat("one text part", [user([part(FRANCE)])], PARIS),
    chat("several text parts", [user([part("What is the capital"), part("of France?")])]),
    chat("empty text part", [user([part(""), part(FRANCE)])]),
    chat("named user", [user(FRANCE) | {"name": "ada"}], PARIS),
    chat("two turns", [user(FRANCE), assistant("The capital of France is Paris."), user("Thank you!")]),
    chat("assistant message last", [user(FRANCE), assistant("The capital of France is Paris.")]),
    chat("only a system message", [system("You are a helpful assistant.")]),
    chat("empty user message", [user("")]),
    chat("null content of an assistant", [user("hi"), assistant(None), user(FRANCE)]),
    chat("refusal of an assistant", [user("hi"), assistant(None, refusal="No."), user(FRANCE)]),
    chat("white space around", "  \n What is the capital of France? \t\n"),
    chat("hello in Japanese", "Say hello in Japanese.", Same("こんにちは", "stop")),
    chat("hello in Korean", "Say hello in Korean.", Same("안녕하세요", "stop")),
    chat("an emoji", "Show me a smile.", Same("😀", "stop")),
    chat("Unicode of all widths asked", "Repeat: é ß 日本語 한글 😀👩‍👩‍👧 𒀀 \u200d\u0301 \u202e"),
    chat("control characters asked", "Repeat: \x00 \x07 \x1b[0m \x7f \ufeff"),
    chat("combining marks are not composed", "Repeat: e\u0301 and \u00e9"),
    chat("quotes and backslashes", "Repeat: \"a\\b\" 'c' {{ d }} {% e %} </script>"),
    chat("spelt special tokens", "Repeat: <|im_end|> <|im_start|> <|endoftext|>"),
    chat("a long answer", "Count to 40.", max_tokens=160),
    chat("a long question", "Repeat: " + " ".join(["apple house water stone river"] * 12), max_tokens=16),
    chat(
        "continued message",
        [user(FRANCE), assistant("The capital of")],
        Same(" France is Paris.", "stop"),
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat(
        "continued message of a user",
        [user("What is the capital")],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat("no generation prompt", FRANCE, add_generation_prompt=False),
    chat("template arguments without use", FRANCE, PARIS, chat_template_kwargs={"enable_thinking": False}),
    chat("reasoning of an assistant", [user("hi"), assistant("Hello!", reasoning="They greet."), user(FRANCE)]),
    chat(
        "reasoning_content of an assistant",
        [user("hi"), assistant("Hello!", reasoning_content="They greet."), user(FRANCE)],
    ),
    chat("special tokens added to a chat", FRANCE, PARIS, add_special_tokens=True),
    chat(
        "refusal part of an assistant", [user("hi"), assistant([{"type": "refusal", "refusal": "No."}]), user(FRANCE)]
    ),
    chat("prediction", FRANCE, PARIS, prediction={"type": "content", "content": "The capital of France is Paris."}),
    chat("reasoning effort", FRANCE, PARIS, reasoning_effort="low"),
    chat("everything null", FRANCE, PARIS, stop=None, seed=None, user=None, tools=None, logit_bias=None, n=None),
    chat(
        "labels",
        FRANCE,
        PARIS,
        user="ada",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_options={"mode": "auto"},
        prompt_cache_retention="24h",
        verbosity="low",
    ),
)

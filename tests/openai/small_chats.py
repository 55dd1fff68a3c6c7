"""A model whose template shows all that a chat may set, with calls in Hermes' form and an option to think."""

from pathlib import Path

from tests.language.small_models import Model, build_byte_level

TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }}{# <tool_call> #}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}"
    "{% endif %}{{ reasoning_effort }}{{ colour }}"
)


def build_open(folder: Path) -> Model:
    return build_byte_level(folder, special=["<think>", "</think>"], template=TEMPLATE)

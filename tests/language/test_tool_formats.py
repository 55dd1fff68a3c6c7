"""A model's chat template shows how the model writes tool calls, and whether its answers may begin with reasoning."""

import pytest

from gateway.language.answer_format import has_reasoning
from gateway.language.reasoning import REASONING_MARKERS
from gateway.language.tool_formats import ToolFormat, find_tool_format

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN = """{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{{- '</tools>\\nReturn <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}{%- endif %}
{%- for call in message.tool_calls %}{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}"""

QWEN_THINKING = QWEN + "{%- set content = message.content.split('</think>')[-1] %}"

QWEN_CODER = """{{- '<tool_call>\\n<function=' + call.name + '>\\n' }}{%- for name, value in call.arguments | items %}
{{- '<parameter=' + name + '>\\n' + value + '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}"""

GLM = """{{ '\\n<tool_call>' + call.name }}{% for k, v in call.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v }}</arg_value>{% endfor %}</tool_call><|assistant|>\\n<think></think>"""

LLAMA_3_1 = """{{- "<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n" }}
{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
{%- if call.name in builtin_tools %}{{- '<|python_tag|>' + call.name + '.call(' }}{%- else %}
{{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{%- endif %}"""

LLAMA_3_2_SMALL = """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{{- '{"name": "' + call.name + '", ' }}
{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}"""

LLAMA_3_WITHOUT_TOOLS = (
    """{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] }}"""
)

HERMES_ON_LLAMA = (
    """{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n<tool_call>\\n{"name": ' }}{{- '"parameters"' }}"""
)

MISTRAL_V3 = """{{- '[AVAILABLE_TOOLS] [' }}{%- for call in message.tool_calls %}{{- '[TOOL_CALLS] [' }}
{%- set out = call.function | tojson %}{{- out[:-1] }}{{- ', "id": "' + call.id + '"}' }}{%- endfor %}"""

MISTRAL_V13 = """{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}"""

DEEPSEEK_R1 = """{% set content = content.split('</think>') | last %}{{'<|tool▁calls▁begin|><|tool▁call▁begin|>'}}
{% if add_generation_prompt %}{{'<|Assistant|><think>\\n'}}{% endif %}"""


@pytest.mark.parametrize(
    ("template", "tool_format", "reasons"),
    [
        (CHATML, None, False),
        ("", None, False),
        (QWEN, ToolFormat.HERMES, False),
        (QWEN_THINKING, ToolFormat.HERMES, True),
        (QWEN_CODER, None, False),
        (GLM, None, True),
        (LLAMA_3_1, ToolFormat.LLAMA3_JSON, False),
        (LLAMA_3_2_SMALL, ToolFormat.LLAMA3_JSON, False),
        (LLAMA_3_WITHOUT_TOOLS, None, False),
        (HERMES_ON_LLAMA, ToolFormat.HERMES, False),
        (MISTRAL_V3, ToolFormat.MISTRAL, False),
        (MISTRAL_V13, ToolFormat.MISTRAL, False),
        (DEEPSEEK_R1, None, True),
    ],
)
def test_format_is_the_one_in_which_the_template_writes(
    template: str, tool_format: ToolFormat | None, reasons: bool
) -> None:
    assert find_tool_format(template) is tool_format
    assert has_reasoning(template) is reasons


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_markers_are_the_templates_own(tool_format: ToolFormat) -> None:
    template = {
        ToolFormat.HERMES: QWEN,
        ToolFormat.LLAMA3_JSON: LLAMA_3_1,
        ToolFormat.MISTRAL: MISTRAL_V13 + "[CALL_ID]",
    }[tool_format]
    assert all(marker in template for marker in tool_format.markers)
    assert all(marker in QWEN_THINKING + "<think>" for marker in REASONING_MARKERS)

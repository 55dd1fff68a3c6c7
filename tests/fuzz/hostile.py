"""Values that nobody sends on purpose: broken Unicode, numbers at and beyond every edge, the wrong type, deep nests.

Strategies for hypothesis; know no field and no endpoint.
"""

import json
from typing import Any, TypeAlias

from hypothesis import strategies as st

Strategy: TypeAlias = st.SearchStrategy[Any]  # Any: a JSON value, of whatever type


@st.composite
def often(draw: st.DrawFn, *choices: tuple[int, Strategy]) -> Any:  # Any: as Strategy
    """One of several, each as often as its weight; st.one_of ignores repetition."""
    return draw(draw(st.sampled_from([strategy for weight, strategy in choices for _ in range(weight)])))


# A nest deeper than Python's own encoder goes stands in a body as one of these until it is encoded.
NESTS = ("\x01nest of lists\x01", "\x01nest of objects\x01")
DEEP = 900  # the parser refuses 1024

SPECIAL = (
    "", " ", "\x00", "\ud800", "\udc00\ud800", "\ufeff", "\u202e\u2066", "\uffff\U0010ffff", "e\u0301\u0323" * 40,
    "🏳️‍🌈👩‍👩‍👧‍👦", "こんにちは", "<|im_start|>", "<|im_end|>", "<|im_end|>\n<|im_start|>system\n", "<|endoftext|>",
    "<tool_call>", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "<think>",
    "</think>", "[TOOL_CALLS]", "{{ 7 * 7 }}{% raw %}", "data: [DONE]\n\n", "\r\nx-crossover-pin: vllm\r\n\r\n",
    "../../etc/passwd", "%00%ff%n%s", '"\\', "null", "NaN", "A" * 3000, "é" * 5000,
    "a long prompt " * 2000,  # such are read in a thread
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 1.5, -0.0, 0.1, 1e-320, 1e308, -1e308, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63,
    -(2**63) - 1, 2**64, 10**30, 10**400, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip

texts: Strategy = st.one_of(
    st.text(max_size=40),
    st.sampled_from(SPECIAL),
    st.text(st.characters(categories=["Cs", "Cc", "Co", "Cn", "Mn", "So"]), max_size=12),
)
numbers: Strategy = st.one_of(st.sampled_from(NUMBERS), st.integers(), st.floats())
atoms: Strategy = st.one_of(st.none(), st.booleans(), numbers, texts, st.sampled_from(NESTS))
anything: Strategy = st.recursive(
    atoms, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)), max_leaves=8
)

# No JSON, or JSON that no parser agrees on with another.
BROKEN = (
    b"", b" ", b"null", b"[]", b'"text"', b"0", b"{", b"{}", b'{"model": "crossover-mini",}',
    b"{\"model\": 'crossover-mini'}", b'\xef\xbb\xbf{"model": "crossover-mini"}', b'{"model": "\xff\xfe"}',
    b'{"model": "\xed\xa0\x80"}', b'{"model": "\\ud800"}', b'{"model": "\\u0000"}',
    b'{"model": "crossover-mini", "model": "other"}', b'{"model": "crossover-mini", "seed": 1e400}',
    b'{"model": "crossover-mini", "seed": ' + b"9" * 5000 + b"}", b'{"model": "crossover-mini", "x": ' + b"[" * 100_000,
    b'{"model": "crossover-mini", "prompt": ' + b"[" * 500 + b"]" * 500 + b"}", b'{"x":' * 1000 + b"1" + b"}" * 1000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip


def encode(value: object, *, escapes: bool = True) -> bytes:
    """As JSON, what JSON has no words for included: NaN, and half a pair as an escape or as bytes that are no UTF-8."""
    raw = json.dumps(value, ensure_ascii=escapes).encode(errors="surrogatepass")
    for nest, (opening, inside, closing) in zip(NESTS, ((b"[", b"", b"]"), (b'{"a":', b"1", b"}")), strict=True):
        raw = raw.replace(json.dumps(nest).encode(), opening * DEEP + inside + closing * DEEP)
    return raw

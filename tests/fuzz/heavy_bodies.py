"""Bodies of up to 8 MB, and floods of small requests, each of which held up the event loop for 50 ms to 4 s once."""

from collections.abc import Mapping
from itertools import count

MOST = 8 * 1024 * 1024 - 64
CHAT, TEXT, TOKENS, IDS = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
MODEL = b'{"model":"sound",'
ASKED = MODEL + b'"messages":[{"role":"user","content":"a"}],'
CALL = b'{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"%b"}}]}'


def filled(start: bytes, item: bytes, end: bytes, most: int = MOST) -> bytes:
    times = (most - len(start) - len(end)) // (len(item) + 1)
    return start + b",".join([item] * times) + end


def keyed(start: bytes, end: bytes) -> bytes:
    items, size, numbers = [], len(start) + len(end), count()
    while size < MOST - 20:
        items.append(b'"k%07d":0' % next(numbers))
        size += len(items[-1]) + 1
    return start + b",".join(items) + end


def repeated(start: bytes, text: bytes, end: bytes, most: int = MOST) -> bytes:
    return start + text * ((most - len(start) - len(end)) // len(text)) + end


BODIES: Mapping[str, tuple[str, bytes]] = {
    **{
        f"a prompt of {item.decode()}": (TEXT, filled(MODEL + b'"prompt":[', item, b"]}"))
        for item in (b"[]", b"{}", b"0", b"70000", b"1.5", b'""', b"[0]")
    },
    **{
        f"messages of {item.decode()}": (CHAT, filled(MODEL + b'"messages":[', item, b"]}"))
        for item in (b"[]", b"{}", b'{"role":"user","content":""}', CALL % b"{}")
    },
    "parts": (CHAT, filled(MODEL + b'"messages":[{"role":"user","content":[', b'{"type":"text","text":""}', b"]}]}")),
    "tools of {}": (CHAT, filled(ASKED + b'"tools":[', b"{}", b"]}")),
    "stop strings": (TEXT, filled(MODEL + b'"prompt":"a","stop":[', b'"a"', b"]}")),
    "variables": (CHAT, filled(ASKED + b'"chat_template_kwargs":{"x":[', b"[]", b"]}}")),
    "a schema in a string": (CHAT, repeated(ASKED + b'"structured_outputs":{"json":"{\\"x\\":[', b"[],", b'[]]}"}}')),
    "arguments in a string": (
        CHAT,
        MODEL + b'"messages":[' + CALL % repeated(b'{\\"x\\":[', b"[],", b"[]]}", MOST - 300) + b"]}",
    ),
    "keys": (TEXT, keyed(b"{", b"}")),
    "labels": (CHAT, keyed(ASKED + b'"metadata":{', b"}}")),
    "biases": (TEXT, keyed(MODEL + b'"prompt":"a","logit_bias":{', b"}}")),
    "ids": (IDS, filled(MODEL + b'"tokens":[', b"0", b"]}")),
    "a text": (TOKENS, repeated(MODEL + b'"prompt":"', b"The quick brown fox. ", b'"}')),
    "a text with its tokens": (TOKENS, repeated(MODEL + b'"return_token_strs":true,"prompt":"', b"a", b'"}')),
    "no end": (TEXT, filled(MODEL + b'"prompt":[', b"[]", b"")),
    # As much as is let through.
    "lists, as many as may be": (TEXT, filled(MODEL + b'"prompt":[', b"[]", b"]}", 597_000)),
    "ids, as many as may be": (IDS, filled(MODEL + b'"tokens":[', b"999", b"]}", 1_048_000)),
    "messages, as many as may be": (
        CHAT,
        filled(MODEL + b'"messages":[', b'{"role":"user","content":""}', b"]}", 950_000),
    ),
    "keys, as many as may be": (CHAT, filled(ASKED + b'"x":[', b'{"a":"b"}', b"]}", 660_000)),
}
FLOODS = {
    name: request * (2_000_000 // len(request))
    for name, request in {
        "of GETs": b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "of probes": b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "of POSTs": b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}",
        "of line ends": b"\r\n",
        "of chunks": b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 300_000,
    }.items()
}

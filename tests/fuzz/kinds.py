"""Generated requests to every path under /v1/, /tokenize and /detokenize: plausible, nearly right, and garbage."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from hypothesis import strategies as st
from pydantic import BaseModel

from deploy.stacks import MODEL
from gateway.anthropic.messages import CountRequest, MessagesRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.responses import ResponsesRequest
from gateway.openai.tokenize import Detokenize, TokenizeChat, TokenizeText
from tests.fuzz.bodies import damaged, plausible
from tests.fuzz.exchange import Sent
from tests.fuzz.hostile import BROKEN, Strategy, anything, encode, often, texts

POSTS = (
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/tokenize", "/detokenize",
)  # fmt: skip
LINES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, blacklist_categories=["Cc"]), max_size=150)
HEADERS: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "x-crossover-pin": often((12, st.sampled_from(("triton", "vllm"))), (1, LINES)),
        "x-crossover-run": often((8, st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True)), (1, LINES)),
        "content-type": st.sampled_from(("application/json", "text/plain", "multipart/form-data; boundary=x", "")),
        "authorization": LINES,
        "accept": st.sampled_from(("text/event-stream", "*/*", "image/png")),
        "x-request-id": LINES,
    },
).map(lambda headers: {name: value.strip() for name, value in headers.items()})


def _post(path: str, *body_types: type[BaseModel]) -> Strategy:
    """Mostly as it should be, sometimes damaged, rarely something else altogether."""
    whole = st.one_of([plausible(body_type) for body_type in body_types])
    names = sorted({name for body_type in body_types for name in body_type.model_fields})
    documents = often((6, whole), (2, damaged(whole, names, most=1)), (1, damaged(whole, names)))
    bodies = st.builds(encode, often((20, documents), (1, anything)), escapes=st.booleans())
    return st.builds(Sent, st.just("POST"), st.just(path), bodies, HEADERS)


def _cut(sent: Sent, at: int, put: bytes) -> Sent:
    place = at % (len(sent.body) + 1)
    return Sent(sent.method, sent.target, sent.body[:place] + put + sent.body[place + len(put) :], sent.headers)


chats = _post("/v1/chat/completions", ChatCompletionRequest)
completions = _post("/v1/completions", CompletionRequest)
messages = _post("/v1/messages", MessagesRequest)
counting = _post("/v1/messages/count_tokens", CountRequest)
responses = _post("/v1/responses", ResponsesRequest)
tokenizing = _post("/tokenize", TokenizeText, TokenizeChat)
detokenizing = _post("/detokenize", Detokenize)

models: Strategy = often((2, st.just(MODEL)), (1, texts)).map(
    lambda name: Sent("GET", f"/v1/models/{quote(name.encode(errors='surrogatepass'), safe='')}")
)
paths: Strategy = st.one_of(
    st.sampled_from((
        *POSTS, "/v1/models", f"/v1/models/{MODEL}", "/v1/models/", "/v1/", "/v1/embeddings", "/v1//models",
    )),
    texts.map(lambda text: "/v1/" + quote(text.encode(errors="surrogatepass"))),
)  # fmt: skip
queries: Strategy = st.sampled_from(("", "", "?", "?beta=true", "?x=%00&x=%ff", "?stream=true"))
methods: Strategy = st.sampled_from(("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "PROPFIND"))
anywhere: Strategy = st.builds(
    lambda method, path, query, body, headers: Sent(method, path + query, body, headers),
    methods,
    paths,
    queries,
    st.sampled_from((b"", b"{}", b"x" * 100)),
    HEADERS,
)
elsewhere: Strategy = often((1, models), (3, anywhere))
broken: Strategy = st.one_of(
    st.builds(Sent, st.just("POST"), st.sampled_from(POSTS), st.one_of(st.sampled_from(BROKEN), st.binary()), HEADERS),
    st.builds(
        _cut,
        st.one_of(chats, completions, messages, counting, responses, tokenizing, detokenizing),
        st.integers(0, 5000),
        st.one_of(st.binary(max_size=3), st.sampled_from((b"\x00", b"\xff", b"\\ud800", b"NaN", b"[" * 2000))),
    ),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """`share` of all requests. `answered`: the part of them that has to be answered with 200, at least.

    A generator that is refused all the time would find nothing.
    """

    requests: Strategy
    share: float
    answered: float = 0.0


KINDS: Mapping[str, Kind] = {
    "chat": Kind(chats, 0.25, answered=0.4),
    "completions": Kind(completions, 0.2, answered=0.3),
    "messages": Kind(messages, 0.15, answered=0.3),
    "count_tokens": Kind(counting, 0.03, answered=0.4),
    "responses": Kind(responses, 0.15, answered=0.4),
    "tokenize": Kind(tokenizing, 0.05, answered=0.3),
    "detokenize": Kind(detokenizing, 0.03, answered=0.3),
    "elsewhere": Kind(elsewhere, 0.06),
    "broken": Kind(broken, 0.08),
}

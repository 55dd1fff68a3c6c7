"""Recognises servers and engines. In: a URL, or an engine's reader. Out: a description, or an identity."""

from typing import NamedTuple

from gateway.access import NEEDS_KEY, Scope
from gateway.evidence import Http, Identity, NoAnswer, Reader, Silence

CROSSOVER = "a Crossover gateway"
OPENAI = "a server with OpenAI's API"


class Sign(NamedTuple):
    """The answer at `path` has that status and holds `sign` if the server is `kind`."""

    path: str
    sign: bytes
    kind: str
    status: int = 200


SIGNS = (
    Sign("/version", b'"is_compiled"', CROSSOVER),
    Sign("/version", NEEDS_KEY.format(Scope.OPERATOR).encode(), CROSSOVER, 401),
    Sign("/version", b'"version"', OPENAI),
    Sign("/v2", b'"triton"', "Triton's HTTP port"),
    Sign("/metrics", b"nv_inference_request_success", "Triton's metrics port"),
    Sign("/v1/models", b'"data"', OPENAI),
)


async def recognise(http: Http, url: str, key: str | None = None) -> str | None:
    """Describes the server at `url`, a scheme, host and port. Returns None if nothing accepts connections there.

    A server that speaks no HTTP gets no further question.
    """
    for path, sign, kind, status in SIGNS:
        try:
            answer = await http.get(f"{url}{path}", key)
        except NoAnswer as exc:
            return None if exc.silence is Silence.NOBODY else exc.silence.value
        if answer.status == status and sign in answer.body:
            return kind
    return "an HTTP server of another kind"


async def identify(reader: Reader, page: bytes | None) -> Identity:
    """Returns the identity that the reader finds; empty if the engine does not answer."""
    try:
        return await reader.identify(page)
    except NoAnswer:
        return {}

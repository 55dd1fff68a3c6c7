"""Every body that the project's own code sends to a vLLM, as it is sent.

By the adapter, the relay lane, the load tester and the doctor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import orjson

from gateway.backends.relay import RelayServer
from gateway.backends.vllm_json import COMPLETIONS, GENERATE, encode
from gateway.core import GenerateRequest, Guide, GuideKind, Prompt, RelayRequest, SamplingParams
from gateway.engine_kinds.vllm.parity import compare_prompts
from gateway.evidence import Http
from gateway.evidence.http import Answer as EngineAnswer
from gateway.language import ModelLanguage
from gateway.settings import RelaySettings
from loadtest.client.prompts import PromptId, Work
from loadtest.client.sender import Sender
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.client.target import Target
from tests.contract.vllm_releases import Body
from tests.fakes.openai import FakeOpenAI
from tests.parity.case import Relayed
from tests.parity.cases import CASES

EVERYTHING = SamplingParams(
    max_tokens=6,
    min_tokens=2,
    temperature=0.7,
    top_p=0.0,
    top_k=40,
    seed=-1,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    ignore_eos=True,
    stop_token_ids=(5, 6),
    min_p=0.05,
    logit_bias=((7, -100.0), (8, 1.5)),
    priority=-3,
)
PLAIN = SamplingParams(max_tokens=6, temperature=0.0)
GUIDES = (
    Guide(GuideKind.JSON),
    Guide(GuideKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}}'),
    Guide(GuideKind.REGEX, "[ab]+"),
    Guide(GuideKind.GRAMMAR, 'root ::= "yes" | "no"'),
)
# Only one route is asked for log-probabilities.
SCORED = tuple(replace(PLAIN, logprobs=shown, prompt_logprobs=of_prompt) for shown, of_prompt in ((2, None), (0, 3)))
UNSCORED = (PLAIN, EVERYTHING, *(replace(PLAIN, guide=guide) for guide in GUIDES))
BY_ROUTE: Mapping[str, tuple[SamplingParams, ...]] = {GENERATE: UNSCORED, COMPLETIONS: (*UNSCORED, *SCORED)}


def list_requests() -> list[tuple[str, GenerateRequest]]:
    """With the route that each is sent by."""
    prompt = Prompt((11, 12, 13))
    return [
        (route, GenerateRequest("req-1", "m", prompt, params, eos_token_ids=(2, 3)))
        for route, choices in BY_ROUTE.items()
        for params in choices
    ]


def list_adapters() -> list[Body]:
    return [
        (route, orjson.loads(encode(route, request, f"call-{number}")))
        for number, (route, request) in enumerate(list_requests())
    ]


def list_relayed() -> Iterator[Body]:
    """What the relay lane makes of the bodies that only it takes."""
    server = RelayServer(RelaySettings("vllm", "http://127.0.0.1:1"))
    for case, stream in product([case for case in CASES if isinstance(case.expected, Relayed)], [False, True]):
        raw = orjson.dumps(case.request(stream=stream))
        sent = server.render(RelayRequest("req-1", "m", case.path.encode(), (b"content-type: application/json",), raw))
        yield case.path, orjson.loads(sent.partition(b"\r\n\r\n")[2])


async def record_load_tester() -> list[Body]:
    async with FakeOpenAI().serving() as server:
        target = Target.parse(server.url)
        for wants_counts, is_exact in product([False, True], [False, True]):
            sender = Sender(target, "m", "", 1, 5, wants_counts=wants_counts, is_exact=is_exact)
            connection = await sender.connect()
            await sender.send(connection, Work("", PromptId(0, 0, 0), 6), StreamedAnswer())
            connection.abort()
        return [("/v1/chat/completions", orjson.loads(exchange.body)) for exchange in server.exchanges]


class RecordingHttp(Http):
    """Notes what is asked, and answers that it cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[Body] = []

    async def post(self, url: str, document: object, key: str | None = None) -> EngineAnswer:
        assert isinstance(document, dict)
        self.bodies.append((url, document))
        return EngineAnswer(404, b"")


async def record_doctor(language: ModelLanguage) -> list[Body]:
    http = RecordingHttp()
    await compare_prompts(http, "", language)
    await http.aclose()
    return http.bodies

"""Examines a vLLM server: its wire, its settings, its metrics page, its tokenizer, its answers.

In: a Subject of kind vllm. Out: a report; the checks of its process and its log are made elsewhere.
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from urllib.parse import urlsplit

from gateway.address import is_loopback, parse_target
from gateway.backends.vllm import VLLMBackend
from gateway.backends.vllm_json import COMPLETIONS, GENERATE
from gateway.doctor import EngineReport, Fault, Finding, Means, Statement, Subject, Topic, make_account
from gateway.doctor.behaviour import Behaviour, observe
from gateway.doctor.recognise import OPENAI, identify, recognise
from gateway.doctor.vllm_settings import read_info
from gateway.engine_kinds.openai_server import OpenAIReader, examine_page, explain_silence
from gateway.engine_kinds.vllm.parity import compare_prompts
from gateway.evidence import Http, Identity, NoAnswer
from gateway.settings import VLLMSettings

INFO_TIMEOUT_S = 30.0  # at the first call vLLM looks at its whole environment


async def look_at_vllm(subject: Subject, settings: VLLMSettings, reader: OpenAIReader, means: Means) -> EngineReport:
    if (fault := await _find_wrong_wire(means.http, subject.where, settings)) is not None:
        return EngineReport(subject, (fault,))
    page, page_faults = await examine_page(subject.where, reader)
    in_flight = reader.count(page) if page else None
    identity = await identify(reader, page)
    info, info_faults = await _read_info(subject.where, means.http, settings)
    statements = (*info, *_read_card(identity), *(reader.read_settings(page) if page else ()))
    behaviour = await _observe(subject, settings, means, statements, in_flight)
    compared = await _compare(subject, settings, means.http)
    findings = (*page_faults, *info_faults, *compared.findings, *behaviour.findings)
    account = make_account((*behaviour.statements, *statements, *compared.statements))
    return EngineReport(subject, findings, account, identity)


async def _find_wrong_wire(http: Http, where: str, settings: VLLMSettings) -> Finding | None:
    """Returns a finding if the server is no vLLM, by its /version, or is not healthy."""
    url, key = settings.url, settings.api_key
    try:
        answer = await http.get(f"{url}/health", key)
    except NoAnswer as exc:
        return explain_silence(where, url, exc)
    other = await recognise(http, url, key)
    if other != OPENAI:
        return Finding(Fault.WRONG_WIRE, where, f"{url} is {other}")
    if answer.status != 200:
        return Finding(Fault.NOT_READY, where, f"{url}/health answers {answer.status}")
    return None


def _read_card(identity: Identity) -> Iterator[Statement]:
    if isinstance(length := identity.get("max_model_len"), int):
        yield Statement(Topic.CONTEXT_LENGTH, length, "its /v1/models")


async def _read_info(
    where: str, http: Http, settings: VLLMSettings
) -> tuple[tuple[Statement, ...], tuple[Finding, ...]]:
    """Reads /server_info, one of the development routes, which show much and let anybody do anything."""
    try:
        answer = await http.get(f"{settings.url}/server_info?config_format=json", settings.api_key, INFO_TIMEOUT_S)
    except NoAnswer:
        return (), ()
    if answer.status not in {200, 500}:  # 500: the route is there, and fails on its environment (seen in 0.32)
        return (), ()
    target = parse_target(settings.url)
    is_shielded = target.socket_path is not None or is_loopback(urlsplit(target.url).hostname or "")
    fault = Finding(Fault.DEV_MODE_OPEN, where, f"{settings.url}/server_info answers {answer.status}")
    return tuple(read_info(answer.document)), () if is_shielded else (fault,)


async def _compare(subject: Subject, settings: VLLMSettings, http: Http) -> Behaviour:
    """Compares the engine's token ids of a few prompts with the gateway's."""
    if subject.language is None:
        return Behaviour()
    try:
        texts, chats, difference = await compare_prompts(http, settings.url, subject.language, settings.api_key)
    except NoAnswer:  # another finding says so
        return Behaviour()
    if difference is not None:
        return Behaviour((Finding(Fault.PROMPT_MISMATCH, subject.where, difference),))
    source = f"its /tokenize, of {texts} texts and {chats} chats"
    return Behaviour(statements=(Statement(Topic.HAS_SAME_PROMPTS, True, source),) if texts or chats else ())


async def _observe(
    subject: Subject, settings: VLLMSettings, means: Means, known: Iterable[Statement], in_flight: int | None
) -> Behaviour:
    if subject.language is None:  # the relay lane
        return Behaviour()
    async with aclosing(VLLMBackend(settings)) as backend:
        if not await backend.is_ready():
            seen = f"{settings.url}/health does not answer 200"
            return Behaviour((Finding(Fault.NOT_READY, subject.where, seen),))
        faults = tuple(_find_route_fault(subject.where, backend.route))
        if not means.options.generates:
            return Behaviour(faults)
        behaviour = await observe(subject, backend, make_account(known), in_flight)
    return Behaviour((*faults, *behaviour.findings), behaviour.statements)


def _find_route_fault(where: str, route: str | None) -> Iterator[Finding]:
    if route == COMPLETIONS:
        yield Finding(Fault.TOKEN_ROUTE_OFF, where, f"POST {GENERATE} is refused")

"""Looks at a server with OpenAI's API: at a vLLM its settings, its tokenizer and its answers too.

In: a Subject whose backend is of kind vllm or relay. Out: a Sight without what its process and its log say.
"""

from collections.abc import Iterator
from contextlib import aclosing
from urllib.parse import urlsplit

from gateway.address import parse_target
from gateway.backends.vllm import VLLMBackend
from gateway.backends.vllm_json import COMPLETIONS, GENERATE
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.hearing import Heard, hear
from gateway.doctor.http import Http, NoAnswer, Silence, recognise
from gateway.doctor.parity import compare_prompts
from gateway.doctor.processes import is_loopback
from gateway.doctor.sights import Means, Sight, Subject
from gateway.doctor.statements import Statement, Topic, settle
from gateway.doctor.vllm_words import read_info, read_page
from gateway.evidence import Identity
from gateway.evidence.pages import Silent
from gateway.evidence.readers import Reader
from gateway.settings import RelaySettings, VLLMSettings

OPENAI = "a server with OpenAI's API"
INFO_TIMEOUT_S = 30.0  # at the first question vLLM looks at its whole environment


async def look_at_vllm(subject: Subject, settings: VLLMSettings, means: Means) -> Sight:
    if (fault := await _find_wrong_wire(means.http, subject.where, settings.url)) is not None:
        return Sight(subject, (fault,))
    reader = subject.engine.reader
    page, page_faults = await _read_page(subject.where, reader, f"{settings.url}/metrics")
    in_flight = reader.count(page) if page else None
    identity = await _identify(reader, page)
    info, info_faults = await _read_info(subject.where, means.http, settings)
    said = (*info, *_read_card(identity), *(read_page(page) if page else ()))
    heard = await _hear(subject, settings, means, said, in_flight)
    compared = await _compare(subject, settings, means.http)
    findings = (*page_faults, *info_faults, *compared.findings, *heard.findings)
    return Sight(subject, findings, settle((*heard.statements, *said, *compared.statements)), identity)


async def look_at_relay(subject: Subject, settings: RelaySettings, means: Means) -> Sight:
    """A server of any make: what it does not tell is not missed."""
    where, url = subject.where, f"{settings.url}{settings.health_path}"
    try:
        answer = await means.http.get(url, settings.api_key)
    except NoAnswer as exc:
        return Sight(subject, (_find_silence(where, url, exc),))
    if answer.status != 200:
        return Sight(subject, (Finding(Fault.NOT_READY, where, f"{url} answers {answer.status}"),))
    reader = subject.engine.reader
    no_page: tuple[bytes | None, tuple[Finding, ...]] = (None, ())
    page, faults = no_page if settings.metrics_url is None else await _read_page(where, reader, settings.metrics_url)
    return Sight(subject, faults, settle(read_page(page) if page else ()), await _identify(reader, page))


async def _find_wrong_wire(http: Http, where: str, url: str) -> Finding | None:
    """vLLM is known by /version; what is something else is asked what it is."""
    try:
        answer = await http.get(f"{url}/health")
    except NoAnswer as exc:
        return _find_silence(where, url, exc)
    other = await recognise(http, url)
    if other != OPENAI:
        return Finding(Fault.WRONG_WIRE, where, f"{url} is {other}")
    if answer.status != 200:
        return Finding(Fault.NOT_READY, where, f"{url}/health answers {answer.status}")
    return None


SILENT = {
    Silence.NOBODY: Fault.UNREACHABLE,
    Silence.MUTE: Fault.NOT_READY,
    Silence.FOREIGN: Fault.WRONG_WIRE,
}


def _find_silence(where: str, url: str, exc: NoAnswer) -> Finding:
    return Finding(SILENT[exc.silence], where, f"at {url} is {exc.silence.value} ({exc})")


async def _read_page(where: str, reader: Reader, url: str) -> tuple[bytes | None, tuple[Finding, ...]]:
    try:
        page = await reader.read_metrics()
    except Silent as exc:
        return None, (Finding(Fault.METRICS_SILENT, where, str(exc)),)
    # With several API processes vLLM's page names the counts, and has no sample of them before the first request.
    if page is None or (reader.count(page) is None and b"vllm:num_requests_waiting" not in page):
        seen = f"{url} has no vllm:num_requests_running and vllm:num_requests_waiting"
        return page, (Finding(Fault.METRICS_SILENT, where, seen),)
    return page, ()


async def _identify(reader: Reader, page: bytes | None) -> Identity:
    try:
        return await reader.identify(page)
    except Silent:
        return {}


def _read_card(identity: Identity) -> Iterator[Statement]:
    if isinstance(length := identity.get("max_model_len"), int):
        yield Statement(Topic.CONTEXT_LENGTH, length, "its /v1/models")


async def _read_info(
    where: str, http: Http, settings: VLLMSettings
) -> tuple[tuple[Statement, ...], tuple[Finding, ...]]:
    """/server_info is one of the development routes, which tell much and let anybody do anything."""
    try:
        answer = await http.get(f"{settings.url}/server_info?config_format=json", timeout_s=INFO_TIMEOUT_S)
    except NoAnswer:
        return (), ()
    if answer.status not in {200, 500}:  # 500: the route is there, and stumbles over its environment (seen in 0.32)
        return (), ()
    target = parse_target(settings.url)
    is_shielded = target.socket_path is not None or is_loopback(urlsplit(target.url).hostname or "")
    fault = Finding(Fault.DEV_MODE_OPEN, where, f"{settings.url}/server_info answers {answer.status}")
    return tuple(read_info(answer.document)), () if is_shielded else (fault,)


async def _compare(subject: Subject, settings: VLLMSettings, http: Http) -> Heard:
    """Its prompts with the gateway's."""
    if subject.language is None:
        return Heard()
    try:
        texts, chats, difference = await compare_prompts(http, settings.url, subject.language)
    except NoAnswer:  # found by others
        return Heard()
    if difference is not None:
        return Heard((Finding(Fault.PROMPT_MISMATCH, subject.where, difference),))
    source = f"its /tokenize, of {texts} texts and {chats} chats"
    return Heard(statements=(Statement(Topic.HAS_SAME_PROMPTS, True, source),) if texts or chats else ())


async def _hear(
    subject: Subject, settings: VLLMSettings, means: Means, said: tuple[Statement, ...], in_flight: int | None
) -> Heard:
    if subject.language is None:  # the relay lane
        return Heard()
    async with aclosing(VLLMBackend(settings)) as backend:
        if not await backend.is_ready():
            return Heard((Finding(Fault.NOT_READY, subject.where, f"{settings.url}/health does not answer 200"),))
        faults = tuple(_find_route_fault(subject.where, backend.route))
        heard = await hear(subject, backend, settle(said), in_flight) if means.question.generates else Heard()
    return Heard((*faults, *heard.findings), heard.statements)


def _find_route_fault(where: str, route: str | None) -> Iterator[Finding]:
    if route == COMPLETIONS:
        yield Finding(Fault.TOKEN_ROUTE_OFF, where, f"POST {GENERATE} is refused")

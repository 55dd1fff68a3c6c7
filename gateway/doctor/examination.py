"""The examination: every engine of a configuration looked at in turn, then the node as a whole.

In: settings and what the operator wants known. Out: a Report. One engine at a time, for two that share a machine would
spoil each other's order of answers.
"""

import asyncio
import resource
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from urllib.parse import quote, urlsplit

from gateway.address import parse_target
from gateway.doctor import logs, vllm_words
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.gpus import Gpu, read_gpus
from gateway.doctor.http import Http, NoAnswer, recognise
from gateway.doctor.node import EVERYWHERE, GATEWAY, LOOPBACK, Machine, find_node_faults
from gateway.doctor.openai import look_at_relay, look_at_vllm
from gateway.doctor.processes import Listener, find_listener, is_local
from gateway.doctor.rules import find_features_off, find_narrow_front_end, find_tight_limits, find_uncredited
from gateway.doctor.sights import Means, Question, Sight, Subject
from gateway.doctor.statements import Statement, Topic, settle
from gateway.doctor.triton import look_at_triton
from gateway.evidence.readers import Engine, open_engines
from gateway.evidence.triton import TritonReader
from gateway.language import ModelLanguage, UnusableTokenizer
from gateway.settings import ModelSettings, RelaySettings, Settings, TritonSettings, VLLMSettings


@dataclass(frozen=True, slots=True)
class Report:
    findings: tuple[Finding, ...]
    sights: tuple[Sight, ...]

    @property
    def is_blind(self) -> bool:
        """Not one engine was there to be looked at."""
        return not any(sight.is_reached for sight in self.sights)


async def examine(settings: Settings, question: Question, report: Callable[[str], None]) -> Report:
    """`report` hears what is being looked at."""
    languages, faults = await _load_languages(settings)
    gpus = await read_gpus()
    async with aclosing(Http()) as http, open_engines(settings.models) as engines:
        sights = []
        for engine in engines:
            report(str(engine))
            subject = _describe(settings, engine, languages)
            sights.append(await look(subject, Means(http, question), gpus))
        report(GATEWAY)
        machine = await _look_around(settings, http, gpus)
    engine_faults = (finding for sight in sights for finding in judge(sight, question))
    return Report((*faults, *engine_faults, *find_node_faults(settings, sights, machine)), tuple(sights))


async def look(subject: Subject, means: Means, gpus: Collection[Gpu]) -> Sight:
    """One engine by all sources: itself, its process, its log."""
    sight = await _look_at(subject, means)
    listener = _find_process(subject)
    places = () if listener is None else tuple(gpu.index for gpu in gpus if any(map(listener.started, gpu.pids)))
    rest = (*_read_process(listener, places), *_read_logs(subject, means.question))
    return replace(sight, listener=listener, gpus=places, account=settle((*sight.account.values(), *rest)))


def judge(sight: Sight, question: Question) -> Iterator[Finding]:
    """What looking found, and what its account means."""
    yield from sight.findings
    if not sight.is_reached:
        return
    where, account = sight.subject.where, sight.account
    yield from find_features_off(where, account)
    for name in sorted(sight.subject.names):
        yield from find_uncredited(where, account, question.required.get(name, ()))
    yield from find_tight_limits(sight.subject, account)
    yield from find_narrow_front_end(where, account)


async def _look_at(subject: Subject, means: Means) -> Sight:
    match subject.backend:
        case TritonSettings() as settings:
            reader = subject.engine.reader
            assert isinstance(reader, TritonReader)  # by evidence's own table of kinds
            return await look_at_triton(subject, settings, reader, means)
        case VLLMSettings() as settings:
            return await look_at_vllm(subject, settings, means)
        case RelaySettings() as settings:
            return await look_at_relay(subject, settings, means)


async def _load_languages(settings: Settings) -> tuple[Mapping[str, ModelLanguage], tuple[Finding, ...]]:
    languages, faults = {}, []
    for model in settings.models:
        if model.is_relayed or model.tokenizer is None:
            continue
        try:
            languages[model.id] = await asyncio.to_thread(ModelLanguage.load, model.tokenizer)
        except UnusableTokenizer as exc:
            faults.append(Finding(Fault.TOKENIZER_UNUSABLE, f"{GATEWAY} ({model.id})", str(exc)))
    return languages, tuple(faults)


def _describe(settings: Settings, engine: Engine, languages: Mapping[str, ModelLanguage]) -> Subject:
    by_id = {model.id: model for model in settings.models}
    models = tuple(by_id[place.model] for place in engine.places)
    language = next((languages[model.id] for model in models if model.id in languages), None)
    return Subject(engine, models[0].backends[engine.places[0].backend], models, language)


def _find_process(subject: Subject) -> Listener | None:
    target = parse_target(subject.backend.url)
    if target.socket_path is not None:
        return find_listener(target.socket_path)
    address = urlsplit(target.url)
    if address.hostname is None or address.port is None or not is_local(address.hostname):
        return None
    return find_listener(address.port)


def _read_process(listener: Listener | None, places: Sequence[str]) -> Iterator[Statement]:
    if listener is None:
        return
    if places:
        yield Statement(Topic.IS_ON_GPU, True, f"nvidia-smi, on GPU {', '.join(places)}")
    if listener.api_processes:
        source = f"the titles of its processes, {listener.api_processes} API servers"
        yield Statement(Topic.HAS_SEVERAL_API_PROCESSES, listener.api_processes > 1, source)
    yield from vllm_words.read_options(listener.arguments)


def _read_logs(subject: Subject, question: Question) -> Iterator[Statement]:
    for name in sorted(subject.names & question.logs.keys()):
        with question.logs[name].open(errors="replace") as lines:
            yield from logs.read_statements(lines)


async def _look_around(settings: Settings, http: Http, gpus: tuple[Gpu, ...]) -> Machine:
    own_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not settings.listen_port or not is_local(settings.listen_host):
        return Machine(own_limit, gpus)
    host = LOOPBACK if settings.listen_host in EVERYWHERE else settings.listen_host
    address = f"[{host}]:{settings.listen_port}" if ":" in host else f"{host}:{settings.listen_port}"
    listening = await recognise(http, f"http://{address}")
    listener = find_listener(settings.listen_port)
    limit = own_limit if listener is None or listener.open_files is None else listener.open_files
    stale = {model.id: await _read_stale(http, address, settings.operator_key, model) for model in settings.models}
    return Machine(limit, gpus, listening, stale if listening is not None else None)


async def _read_stale(http: Http, address: str, key: str | None, model: ModelSettings) -> Sequence[str]:
    """Of the gateway that runs, in the words of `crossover policy show`; none where nothing runs."""
    try:
        answer = await http.get(f"http://{address}/admin/policy?model={quote(model.id, safe='')}", key)
    except NoAnswer:
        return ()
    changes = answer.document.get("stale", [])
    return ["{backend} {field} was {old}, is {new}".format_map(change) for change in changes]

"""The examination: every engine of a configuration in turn, then the node as a whole.

In: settings, the kinds of engines, the command line's options. Out: a Report. One engine at a time, because two that
share a machine would disturb each other's order of answers.
"""

import asyncio
import resource
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from gateway.access import KeyFile, KeyFileUnreadable
from gateway.address import parse_target
from gateway.doctor import logs, vllm_settings
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.gpus import Gpu, read_gpus
from gateway.doctor.node import GATEWAY, Machine, find_node_faults, own_url
from gateway.doctor.processes import Listener, find_listener, is_local
from gateway.doctor.recognise import recognise
from gateway.doctor.rules import find_features_off, find_narrow_front_end, find_tight_limits, find_uncredited
from gateway.doctor.statements import Statement, Topic, make_account
from gateway.doctor.subjects import EngineReport, Means, Options, Report, Subject
from gateway.evidence import Engine, Http, NoAnswer, open_engines
from gateway.evidence.engine import ReadableKind
from gateway.language import ModelLanguage, UnusableTokenizer
from gateway.settings import ModelSettings, Settings

TIMEOUT_S = 5.0  # of an HTTP call


class ExaminableKind(ReadableKind, Protocol):
    """A kind of engine, as far as this room is concerned. Any: each has settings and a reader of its own."""

    @property
    def look(self) -> Callable[[Subject, Any, Any, Means], Awaitable[EngineReport]]: ...


async def examine(
    settings: Settings, options: Options, kinds: Mapping[str, ExaminableKind], report: Callable[[str], object]
) -> Report:
    """Examines every engine, then the node. `report` receives each engine's name, then `gateway`, beforehand."""
    languages, faults = await _load_languages(settings)
    gpus = await read_gpus()
    async with aclosing(Http(TIMEOUT_S)) as http, open_engines(settings.models, kinds) as engines:
        reports = []
        for engine in engines:
            report(str(engine))
            subject = _describe(settings, engine, languages)
            seen = await kinds[subject.backend.kind].look(subject, subject.backend, engine.reader, Means(http, options))
            reports.append(_add_process_and_log(seen, options, gpus))
        report(GATEWAY)
        machine = await _look_around(settings, http, gpus)
    engine_faults = (finding for seen in reports for finding in judge(seen, options))
    return Report((*faults, *engine_faults, *find_node_faults(settings, reports, machine)), tuple(reports))


def _add_process_and_log(seen: EngineReport, options: Options, gpus: Collection[Gpu]) -> EngineReport:
    listener = _find_process(seen.subject)
    places = () if listener is None else tuple(gpu.index for gpu in gpus if any(map(listener.started, gpu.pids)))
    rest = (*_read_process(listener, places), *_read_logs(seen.subject, options))
    return replace(seen, listener=listener, gpus=places, account=make_account((*seen.account.values(), *rest)))


def judge(seen: EngineReport, options: Options) -> Iterator[Finding]:
    """Yields the findings of the look, and those that follow from the account."""
    yield from seen.findings
    if not seen.is_reached:
        return
    where, account = seen.subject.where, seen.account
    yield from find_features_off(where, account)
    for name in sorted(seen.subject.names):
        yield from find_uncredited(where, account, options.required.get(name, ()))
    yield from find_tight_limits(seen.subject, account)
    yield from find_narrow_front_end(where, account)


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
    yield from vllm_settings.read_options(listener.arguments)


def _read_logs(subject: Subject, options: Options) -> Iterator[Statement]:
    for name in sorted(subject.names & options.logs.keys()):
        with options.logs[name].open(errors="replace") as lines:
            yield from logs.read_statements(lines)


async def _look_around(settings: Settings, http: Http, gpus: tuple[Gpu, ...]) -> Machine:
    own_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not settings.listen_port or not is_local(settings.listen_host):
        return Machine(own_limit, gpus, has_keys=_has_keys(settings))
    url = own_url(settings)
    listening = await recognise(http, url)
    listener = find_listener(settings.listen_port)
    limit = own_limit if listener is None or listener.open_files is None else listener.open_files
    stale = {model.id: await _read_stale(http, url, settings.operator_key, model) for model in settings.models}
    return Machine(limit, gpus, listening, stale if listening is not None else None, _has_keys(settings))


def _has_keys(settings: Settings) -> bool:
    """Returns whether callers are asked for keys. With keys that cannot be read the gateway does not even start."""
    try:
        return bool(KeyFile(settings.state_folder).read())
    except KeyFileUnreadable:
        return True


async def _read_stale(http: Http, url: str, key: str | None, model: ModelSettings) -> Sequence[str]:
    """Returns the changes that the running gateway reports, worded as by `crossover policy show`; none without one."""
    try:
        answer = await http.get(f"{url}/admin/policy?model={quote(model.id, safe='')}", key)
    except NoAnswer:
        return ()
    changes = answer.document.get("stale", [])
    return ["{backend} {field} was {old}, is {new}".format_map(change) for change in changes]

"""Examines a Triton server: its wire, its model's configuration, its metrics page, its answers.

In: a Subject of kind triton. Out: a report without its process and its log.
"""

from collections.abc import Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from gateway.backends.triton import TritonBackend
from gateway.doctor import EngineReport, Fault, Finding, Means, Statement, Subject, Topic, make_account
from gateway.doctor.behaviour import Behaviour, observe
from gateway.doctor.recognise import identify, recognise
from gateway.engine_kinds.triton import engine_folder
from gateway.engine_kinds.triton.model_config import (
    ENGINE_FOLDER,
    TritonConfig,
    find_differences,
    find_placeholders,
    read_config,
    read_statements,
)
from gateway.engine_kinds.triton.reader import TritonReader
from gateway.evidence import NoAnswer, Silence
from gateway.evidence.exposition import sum_count
from gateway.settings import TritonSettings


async def look_at_triton(
    subject: Subject, settings: TritonSettings, reader: TritonReader, means: Means
) -> EngineReport:
    where = subject.where
    try:
        await reader.read_server()
    except NoAnswer as exc:
        return EngineReport(subject, (await _explain_silence(where, settings, means, exc),))
    try:
        config = read_config(await reader.read_config())
    except NoAnswer as exc:
        return EngineReport(subject, (await _explain_hidden_config(subject, settings, exc),))
    page, page_faults = await _read_page(where, settings, reader)
    statements = (*_read_folder(config), *read_statements(config), *_read_metrics(settings, page))
    in_flight = reader.count(page) if page else None
    behaviour = await _observe(subject, settings, means, statements, in_flight) if config.is_decoupled else Behaviour()
    return EngineReport(
        subject,
        (*find_config_faults(where, config), *page_faults, *behaviour.findings),
        make_account((*behaviour.statements, *statements)),
        await identify(reader, page),
    )


def find_config_faults(where: str, config: TritonConfig) -> Iterator[Finding]:
    if not config.is_decoupled:
        yield Finding(Fault.NOT_DECOUPLED, where, "its model_transaction_policy is not decoupled")
    if differences := list(find_differences(config)):
        yield Finding(Fault.TENSORS_DIFFER, where, "; ".join(differences))
    if names := find_placeholders(config):
        yield Finding(Fault.PLACEHOLDER_LEFT, where, ", ".join(f"{name}: {config.parameters[name]}" for name in names))


async def _explain_silence(where: str, settings: TritonSettings, means: Means, reason: NoAnswer) -> Finding:
    other = await recognise(means.http, f"http://{urlsplit(settings.url).netloc}")
    if other is None:
        return Finding(Fault.UNREACHABLE, where, f"at {settings.url} is {Silence.NOBODY.value}")
    if other == Silence.MUTE.value:
        return Finding(Fault.NOT_READY, where, f"at {settings.url} is {other} ({reason})")
    return Finding(Fault.WRONG_WIRE, where, f"{settings.url} is {other}, and does not speak KServe's gRPC ({reason})")


async def _explain_hidden_config(subject: Subject, settings: TritonSettings, reason: NoAnswer) -> Finding:
    """Finds CONFIG_HIDDEN or NOT_READY: a model that serves but shows no configuration restricts access to it."""
    async with aclosing(TritonBackend(settings)) as backend:
        fault = Fault.CONFIG_HIDDEN if await backend.is_ready() else Fault.NOT_READY
    return Finding(fault, subject.where, f"it shows no configuration of its model {settings.model}: {reason}")


async def _read_page(
    where: str, settings: TritonSettings, reader: TritonReader
) -> tuple[bytes | None, tuple[Finding, ...]]:
    if settings.metrics_url is None:
        return None, (Finding(Fault.METRICS_MISSING, where, "no metrics_url"),)
    try:
        page = await reader.read_metrics()
    except NoAnswer as exc:
        return None, (Finding(Fault.METRICS_SILENT, where, str(exc)),)
    if page is None or reader.count(page) is None:
        seen = f"{settings.metrics_url} has no nv_trt_llm_request_metrics of the model {settings.model}"
        return page, (Finding(Fault.METRICS_SILENT, where, seen),)
    return page, ()


def _read_folder(config: TritonConfig) -> Iterator[Statement]:
    if folder := config.parameters.get(ENGINE_FOLDER):
        yield from engine_folder.read_statements(Path(folder))


def _read_metrics(settings: TritonSettings, page: bytes | None) -> Iterator[Statement]:
    if page is None:
        return
    source = "its metrics page"
    if capacity := sum_count(page, "nv_trt_llm_request_metrics", request_type="max", model=settings.model):
        yield Statement(Topic.CAPACITY, capacity, source)
    blocks = sum_count(page, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max", model=settings.model)
    if blocks:
        yield Statement(Topic.PAGED_KV, True, f"{source}, which counts {blocks} blocks")


async def _observe(
    subject: Subject, settings: TritonSettings, means: Means, known: Iterable[Statement], in_flight: int | None
) -> Behaviour:
    """Sends requests to a decoupled model. With any other, some releases of Triton crash (llama_index#14716)."""
    if not means.options.generates or subject.language is None:
        return Behaviour()
    async with aclosing(TritonBackend(settings, vocab_size=subject.language.vocab_size)) as backend:
        if not await backend.is_ready():
            seen = f"it is not ready to serve its model {settings.model}"
            return Behaviour((Finding(Fault.NOT_READY, subject.where, seen),))
        return await observe(subject, backend, make_account(known), in_flight)

"""Looks at a Triton server: its wire, its model's configuration, its metrics page, its answers.

In: a Subject whose backend is of kind triton. Out: a Sight without what its process and its log say.
"""

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from gateway.backends.triton import TritonBackend
from gateway.doctor import engine_folder
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.hearing import Heard, hear
from gateway.doctor.http import Silence, recognise
from gateway.doctor.sights import Means, Sight, Subject
from gateway.doctor.statements import Statement, Topic, settle
from gateway.doctor.triton_config import (
    ENGINE_FOLDER,
    TritonConfig,
    find_differences,
    find_placeholders,
    read_config,
    read_statements,
)
from gateway.evidence.exposition import sum_count
from gateway.evidence.pages import Silent
from gateway.evidence.triton import TritonReader
from gateway.settings import TritonSettings


async def look_at_triton(subject: Subject, settings: TritonSettings, reader: TritonReader, means: Means) -> Sight:
    where = subject.where
    try:
        await reader.read_server()
    except Silent as exc:
        return Sight(subject, (await _explain_silence(where, settings, means, exc),))
    try:
        config = read_config(await reader.read_config())
    except Silent as exc:
        return Sight(subject, (await _explain_secrecy(subject, settings, exc),))
    page, page_faults = await _read_page(where, settings, reader)
    said = (*_read_folder(config), *read_statements(config), *_read_metrics(settings, page))
    in_flight = reader.count(page) if page else None
    heard = await _hear(subject, settings, means, said, in_flight) if config.is_decoupled else Heard()
    return Sight(
        subject,
        (*find_config_faults(where, config), *page_faults, *heard.findings),
        settle((*heard.statements, *said)),
        await _identify(reader, page),
    )


def find_config_faults(where: str, config: TritonConfig) -> Iterator[Finding]:
    if not config.is_decoupled:
        yield Finding(Fault.NOT_DECOUPLED, where, "its model_transaction_policy is not decoupled")
    if differences := list(find_differences(config)):
        yield Finding(Fault.TENSORS_DIFFER, where, "; ".join(differences))
    if names := find_placeholders(config):
        yield Finding(Fault.PLACEHOLDER_LEFT, where, ", ".join(f"{name}: {config.parameters[name]}" for name in names))


async def _explain_silence(where: str, settings: TritonSettings, means: Means, reason: Silent) -> Finding:
    other = await recognise(means.http, f"http://{urlsplit(settings.url).netloc}")
    if other is None:
        return Finding(Fault.UNREACHABLE, where, f"at {settings.url} is {Silence.NOBODY.value}")
    if other == Silence.MUTE.value:
        return Finding(Fault.NOT_READY, where, f"at {settings.url} is {other} ({reason})")
    return Finding(Fault.WRONG_WIRE, where, f"{settings.url} is {other}, and does not speak KServe's gRPC ({reason})")


async def _explain_secrecy(subject: Subject, settings: TritonSettings, reason: Silent) -> Finding:
    """A model that serves all the same is one whose configuration is restricted."""
    async with aclosing(TritonBackend(settings)) as backend:
        fault = Fault.CONFIG_HIDDEN if await backend.is_ready() else Fault.NOT_READY
    return Finding(fault, subject.where, f"it tells no configuration of its model {settings.model}: {reason}")


async def _read_page(
    where: str, settings: TritonSettings, reader: TritonReader
) -> tuple[bytes | None, tuple[Finding, ...]]:
    if settings.metrics_url is None:
        return None, (Finding(Fault.METRICS_MISSING, where, "no metrics_url"),)
    try:
        page = await reader.read_metrics()
    except Silent as exc:
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


async def _hear(
    subject: Subject, settings: TritonSettings, means: Means, said: tuple[Statement, ...], in_flight: int | None
) -> Heard:
    """Never of a model that is not decoupled: some releases of Triton end as a whole (llama_index#14716)."""
    if not means.question.generates or subject.language is None:
        return Heard()
    async with aclosing(TritonBackend(settings, vocab_size=subject.language.vocab_size)) as backend:
        if not await backend.is_ready():
            seen = f"it is not ready to serve its model {settings.model}"
            return Heard((Finding(Fault.NOT_READY, subject.where, seen),))
        return await hear(subject, backend, settle(said), in_flight)


async def _identify(reader: TritonReader, page: bytes | None) -> dict[str, str | int]:
    try:
        return dict(await reader.identify(page))
    except Silent:
        return {}

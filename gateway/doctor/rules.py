"""The rules for an engine's account: features that should be on and are not, limits that do not fit. Pure.

In: an account, and what the configuration asks of the engine. Out: findings.
"""

from collections.abc import Collection, Iterator

from gateway.doctor.faults import Fault, Finding
from gateway.doctor.statements import Account, Topic
from gateway.doctor.subjects import Subject

FEATURE_FAULTS = {
    Topic.IN_FLIGHT_BATCHING: Fault.IN_FLIGHT_BATCHING_OFF,
    Topic.PAGED_KV: Fault.PAGED_KV_OFF,
    Topic.CUDA_GRAPHS: Fault.CUDA_GRAPHS_OFF,
    Topic.CHUNKED_PREFILL: Fault.CHUNKED_PREFILL_OFF,
    Topic.PREFIX_CACHING: Fault.PREFIX_CACHING_OFF,
}
GPU_ONLY = frozenset({Topic.CUDA_GRAPHS})  # cannot be turned on elsewhere
# Requests at once by token ids: at 256 one API process gave 4 % fewer tokens than four, at 512 34 % (docs/doctor.md).
MAX_FOR_ONE_PROCESS = 256


def find_features_off(where: str, account: Account) -> Iterator[Finding]:
    """Finds features that some source shows to be off. A feature that no source mentions is unknown, and no fault."""
    for topic, fault in FEATURE_FAULTS.items():
        statement, on_gpu = account.get(topic), account.get(Topic.IS_ON_GPU)
        if topic in GPU_ONLY and (on_gpu is None or not on_gpu.value):
            continue
        if statement is not None and not statement.value:
            yield Finding(fault, where, f"{topic} is off by {statement.source}")


def find_uncredited(where: str, account: Account, required: Collection[Topic]) -> Iterator[Finding]:
    """Finds features that the operator credits the engine with and that no source shows."""
    for topic in sorted(required):
        statement = account.get(topic)
        if statement is None:
            yield Finding(Fault.CREDITED_NOT_SHOWN, where, f"nothing says whether {topic} is on")
        elif not statement.value:
            yield Finding(Fault.CREDITED_NOT_SHOWN, where, f"{topic} is off by {statement.source}")


def find_tight_limits(subject: Subject, account: Account) -> Iterator[Finding]:
    context, capacity = account.get(Topic.CONTEXT_LENGTH), account.get(Topic.CAPACITY)
    language = subject.language
    if language is not None and context is not None and context.value < language.context_length:
        yield Finding(
            Fault.CONTEXT_BEYOND_ENGINE,
            subject.where,
            f"the gateway takes {language.context_length} tokens, the engine {context.value:.0f} by {context.source}",
        )
    needed = subject.max_in_flight
    if capacity is not None and capacity.value < needed:
        yield Finding(
            Fault.CAPACITY_BELOW_THRESHOLD,
            subject.where,
            f"the policy lets {needed} in flight there, the engine runs {capacity.value:.0f} by {capacity.source}",
        )


def find_narrow_front_end(where: str, account: Account) -> Iterator[Finding]:
    several, capacity = account.get(Topic.HAS_SEVERAL_API_PROCESSES), account.get(Topic.CAPACITY)
    if several is None or several.value or (capacity is not None and capacity.value <= MAX_FOR_ONE_PROCESS):
        return
    seen = f"one API process by {several.source}"
    if capacity is not None:
        seen += f", for {capacity.value:.0f} requests at once by {capacity.source}"
    yield Finding(Fault.ONE_API_PROCESS, where, seen)

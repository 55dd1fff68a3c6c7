"""Has an engine generate by the gateway's own adapter, and says what that shows.

In: a Subject, its adapter, what is known of it so far. Out: findings and statements.
"""

from dataclasses import dataclass

from gateway.core import TokenBackend
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.generation import Speaker, answers, overtakes, remembers
from gateway.doctor.sights import Subject
from gateway.doctor.statements import Account, Statement, Topic
from gateway.errors import GatewayError
from gateway.language import ModelLanguage

PROMPT = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True, slots=True)
class Heard:
    findings: tuple[Finding, ...] = ()
    statements: tuple[Statement, ...] = ()


async def hear(subject: Subject, backend: TokenBackend, known: Account, in_flight: int | None) -> Heard:
    """Nothing where the model's tokenizer is not known, for then no token goes there.

    `in_flight`: requests that the engine held before. Beside others a short one may have to queue, so that the order of
    answers can show that an engine batches in flight, and not that it does not.
    """
    if subject.language is None:
        return Heard()
    speaker = _make_speaker(backend, subject.language, known)
    try:
        await answers(speaker)
        return Heard(statements=(*await _find_order(speaker, in_flight), *await _find_memory(speaker, known)))
    except (GatewayError, TimeoutError) as exc:
        return Heard((Finding(Fault.CANNOT_GENERATE, subject.where, str(exc) or "nothing came in a minute"),))


async def _find_order(speaker: Speaker, in_flight: int | None) -> tuple[Statement, ...]:
    is_batched = await overtakes(speaker)
    if in_flight and not is_batched:
        return ()
    source = f"the order of two answers: a later, short one ended {'before' if is_batched else 'after'} a long one"
    return (Statement(Topic.IN_FLIGHT_BATCHING, is_batched, source),)


async def _find_memory(speaker: Speaker, known: Account) -> tuple[Statement, ...]:
    if Topic.PREFIX_CACHING in known or not await remembers(speaker):
        return ()
    return (Statement(Topic.PREFIX_CACHING, True, "prompts that were answered much sooner the second time"),)


def _make_speaker(backend: TokenBackend, language: ModelLanguage, known: Account) -> Speaker:
    context = known.get(Topic.CONTEXT_LENGTH)
    return Speaker(
        backend=backend,
        prompt=language.encode_text(PROMPT),
        eos_token_ids=language.eos_token_ids,
        context_length=min(language.context_length, int(context.value) if context else language.context_length),
        vocab_size=language.vocab_size,
    )

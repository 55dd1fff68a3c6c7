"""Sends an engine a few short requests by the gateway's own adapter, and reports what the answers show.

In: a Subject, its adapter, what is known of it so far. Out: findings and statements.
"""

from dataclasses import dataclass

from gateway.core import TokenBackend
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.generation import Examiner, answers, overtakes, remembers
from gateway.doctor.statements import Account, Statement, Topic
from gateway.doctor.subjects import Subject
from gateway.errors import GatewayError
from gateway.language import ModelLanguage

PROMPT = "The quick brown fox jumps over the lazy dog."


@dataclass(frozen=True, slots=True)
class Behaviour:
    findings: tuple[Finding, ...] = ()
    statements: tuple[Statement, ...] = ()


async def observe(subject: Subject, backend: TokenBackend, known: Account, in_flight: int | None) -> Behaviour:
    """Sends the requests. Returns an empty Behaviour if the model's tokenizer is not known: no tokens go there then.

    `in_flight`: requests that the engine held before. Beside these a short one may have to queue: the order of
    answers can then show that an engine batches in flight, but not that it does not.
    """
    if subject.language is None:
        return Behaviour()
    examiner = _make_examiner(backend, subject.language, known)
    try:
        await answers(examiner)
        is_batched = await overtakes(examiner)
        has_memory = Topic.PREFIX_CACHING not in known and await remembers(examiner)
    except (GatewayError, TimeoutError) as exc:
        return Behaviour((Finding(Fault.CANNOT_GENERATE, subject.where, str(exc) or "nothing came in a minute"),))
    statements = []
    if is_batched or not in_flight:
        source = f"the order of two answers: a later, short one ended {'before' if is_batched else 'after'} a long one"
        statements.append(Statement(Topic.IN_FLIGHT_BATCHING, is_batched, source))
    if has_memory:
        source = "prompts that were answered much sooner the second time"
        statements.append(Statement(Topic.PREFIX_CACHING, True, source))
    return Behaviour(statements=tuple(statements))


def _make_examiner(backend: TokenBackend, language: ModelLanguage, known: Account) -> Examiner:
    context = known.get(Topic.CONTEXT_LENGTH)
    return Examiner(
        backend=backend,
        prompt=language.encode_text(PROMPT),
        eos_token_ids=language.eos_token_ids,
        context_length=min(language.context_length, int(context.value) if context else language.context_length),
        vocab_size=language.vocab_size,
    )

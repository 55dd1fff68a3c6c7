"""The load of a paced engine: what its pacer knows better than the model that computes.

In: an EngineLoad and a Pacer. Out: an EngineLoad. Pure.
"""

from dataclasses import replace

from engines.reference.engine import EngineLoad
from engines.reference.pacing import Pacer


def describe_paced(load: EngineLoad, pacer: Pacer) -> EngineLoad:
    counts, engine = pacer.counts, pacer.engine
    if engine.kv_tokens is not None:
        total = engine.kv_tokens * engine.replicas
        load = replace(load, kv_tokens_used=min(pacer.context, total), kv_tokens_total=total, counts_blocks=True)
    return replace(
        load,
        running=pacer.running,
        waiting=pacer.waiting,
        capacity=engine.max_sequences * engine.replicas,
        replicas=engine.replicas,
        drafts=counts.drafts if engine.verified > 1 else 0,
        drafted=counts.drafts * (engine.verified - 1),
        accepted=counts.accepted,
        queried=counts.queried if pacer.caches_prefixes else None,
        found=counts.found,
    )

"""An engine without a model: every answer is one token over and over, as long as was asked for.

In and out as engine.py's. For paced engines: what is left of a step is bookkeeping, so a pace is held on a machine that
could not compute its tokens.
"""

from collections.abc import Collection

from engines.reference.engine import Engine, TokenOutput


class Recital(Engine):
    """Sampling, guides and scores have no effect. Stop ids end an answer only if they hold the token recited."""

    def step(self, only: Collection[str] | None = None) -> list[TokenOutput]:
        self._admit()
        scheduled = self._schedule(only)
        if not scheduled:
            return []
        self._count(scheduled)
        decoded = [generation for generation, _ in scheduled if generation.pending == 0]
        self._generated_tokens += len(decoded)
        return [self._deliver(generation, self._token_id, None) for generation in decoded]

    @property
    def _token_id(self) -> int:
        """Half-way up a vocabulary stand words; special tokens stand at its ends."""
        return self.vocab_size // 2

"""What an answer shows: log-probabilities, ids, usage, streams, prompts."""

from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = []

"""Fields without effect, fields refused, fields inside others, the other endpoints."""

from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = []

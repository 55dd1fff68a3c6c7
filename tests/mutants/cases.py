"""All mutants, by what they are about."""

from tests.mutants.mutant import Mutant
from tests.mutants.table import bodies, details, others, sampling

MUTANTS: tuple[Mutant, ...] = (*sampling.MUTANTS, *details.MUTANTS, *bodies.MUTANTS, *others.MUTANTS)

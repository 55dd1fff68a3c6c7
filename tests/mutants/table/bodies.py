"""Messages, tools, guided decoding, templates, reasoning."""

from tests.mutants.mutant import Mutant

MUTANTS: list[Mutant] = []

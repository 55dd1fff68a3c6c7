"""All mutants: those of the fields of docs/api.md, and by room those of what else users and operators are promised."""

from tests.mutants.mutant import Mutant
from tests.mutants.table import backends, client_http, fields, language, openai, operators, routing, serving

ROOMS = (fields, openai, serving, client_http, routing, backends, language, operators)
MUTANTS: tuple[Mutant, ...] = tuple(mutant for room in ROOMS for mutant in room.MUTANTS)

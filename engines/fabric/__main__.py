"""`python -m engines.fabric`: the command `crossover fabric` where the rest of Crossover is not installed."""

from engines.fabric.cli import fabric

fabric(prog_name="crossover fabric")

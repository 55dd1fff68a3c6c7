"""`python -m engines.fabric`: the command `crossover fabric` where only this repository and click are installed."""

from engines.fabric.cli import fabric

fabric(prog_name="crossover fabric")

"""`python -m loadtest`: the same as `crossover calibrate`, where nothing else of Crossover is installed."""

from loadtest.calibrate_cli import calibrate

calibrate(prog_name="python -m loadtest")

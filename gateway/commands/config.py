"""The option that names a gateway's configuration, which most commands have. Imports nothing of the package."""

from pathlib import Path

import click

CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The configuration; by default $CROSSOVER_CONFIG, else crossover.yaml here.",
)

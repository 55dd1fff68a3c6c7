"""Crossover's gateway: an OpenAI-compatible endpoint over two engines, routed by what is in flight."""

from importlib.metadata import version

__version__ = version("crossover")

"""Reads crossover.yaml and the environment into one frozen Settings, or reports every mistake in them.

Knows every kind of engine and every policy, which have sections of their own; nothing else here reads the environment.
Every key, default and meaning: docs/configuration.md.
"""

from gateway.configuration.load import SettingsError, default_path, load_settings, parse_settings

__all__ = ["SettingsError", "default_path", "load_settings", "parse_settings"]

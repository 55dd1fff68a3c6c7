"""Measures this project itself, and not a user's engines. Not part of the wheel."""

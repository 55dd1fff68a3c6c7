"""Fixtures of the scripted engines, for the tests here that use them."""

from tests.serving.stack import language, writer

__all__ = ["language", "writer"]

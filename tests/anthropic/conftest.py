"""Fixtures of the Messages API: a gateway before scripted backends, and a model's language."""

from tests.serving.stack import anyio_backend, client, language, stack, writer

__all__ = ["anyio_backend", "client", "language", "stack", "writer"]

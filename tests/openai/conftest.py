"""Fixtures of the gateway's API: a gateway before scripted backends, a client of it, and a model's language."""

from tests.serving.stack import anyio_backend, client, language, stack, writer

__all__ = ["anyio_backend", "client", "language", "stack", "writer"]

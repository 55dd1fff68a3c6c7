"""The kinds of engines: all that the gateway knows of a kind is in its folder or file, and its line here.

A kind brings its settings, its backends, its reader and its look, and may derive them from another's: one that speaks
OpenAI's API needs no more than settings and the names of its metrics. Settings that an adapter in backends/ takes are
in settings/backends.py, below that room.
"""

from collections.abc import Mapping
from typing import Any

from gateway.engine_kinds.kind import EngineKind
from gateway.engine_kinds.relay import RELAY
from gateway.engine_kinds.triton import TRITON
from gateway.engine_kinds.vllm import VLLM

__all__ = ["ENGINE_KINDS", "EngineKind"]

ENGINE_KINDS: Mapping[str, EngineKind[Any, Any]] = {  # Any: each has settings and a reader of its own
    "triton": TRITON,
    "vllm": VLLM,
    "relay": RELAY,
}

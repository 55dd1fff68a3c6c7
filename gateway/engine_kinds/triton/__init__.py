"""The kind `triton`: a Triton Inference Server with a model that speaks token ids, TensorRT-LLM's as a rule."""

from gateway.backends.triton import TritonBackend
from gateway.engine_kinds.kind import EngineKind
from gateway.engine_kinds.triton.look import look_at_triton
from gateway.engine_kinds.triton.reader import TritonReader
from gateway.settings import TritonSettings

TRITON = EngineKind(
    settings=TritonSettings,
    open_tokens=lambda settings, vocab_size: TritonBackend(settings, vocab_size=vocab_size),
    open_relay=None,
    open_reader=TritonReader,
    look=look_at_triton,
)

"""The kind `vllm`: a vLLM server, by token ids and by its own OpenAI API."""

from gateway.backends.relay import RelayServer
from gateway.backends.vllm import VLLMBackend
from gateway.engine_kinds.kind import EngineKind
from gateway.engine_kinds.openai_server import OpenAIReader
from gateway.engine_kinds.vllm.look import look_at_vllm
from gateway.evidence import Http
from gateway.settings import VLLMSettings


def _open_reader(settings: VLLMSettings, http: Http) -> OpenAIReader:
    return OpenAIReader(http, settings.url, f"{settings.url}/metrics", engine="vllm", key=settings.api_key)


VLLM = EngineKind(
    settings=VLLMSettings,
    open_tokens=VLLMBackend,
    open_relay=RelayServer,
    open_reader=_open_reader,
    look=look_at_vllm,
)

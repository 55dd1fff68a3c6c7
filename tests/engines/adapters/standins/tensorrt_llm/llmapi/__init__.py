"""The names that tensorrt_llm.llmapi gives, as far as the adapter needs them."""

from tensorrt_llm.result import CompletionOutput
from tensorrt_llm.sampling_params import GuidedDecodingParams

__all__ = ["CompletionOutput", "GuidedDecodingParams"]

"""Stands in for TensorRT-LLM's LLM API: its documented signatures and no other names. The reference engine computes.

Sources: llmapi/llm.py, sampling_params.py and executor/result.py below tensorrt_llm/ of NVIDIA/TensorRT-LLM. What their
documentation leaves open is set by variables of the process: whether the end token is among an answer's ids (the C++
executor leaves it out), and how many tokens a response brings.
"""

from tensorrt_llm.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

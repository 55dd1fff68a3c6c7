"""Stands in for TensorRT-LLM's LLM API: its documented signatures and no other names. The reference engine computes.

Arguments and sampling parameters are those of engines/trtllm/contract.yaml; results are as in executor/result.py of
NVIDIA/TensorRT-LLM. What differs between releases, or is left open, is set by variables of the process: which schema
`speculative_config` has, whether the end token is among an answer's ids (the C++ executor leaves it out), and how many
tokens a response brings.
"""

from tensorrt_llm.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

"""The inputs of TensorRT-LLM 1.2.1: command lines, the YAML of its LLM API, config.pbtxt of its Triton backend.

In: a Recipe. Out: steps and texts. Runs nothing.
"""

"""What TensorRT-LLM 1.2.1 takes: command lines, the YAML of its LLM API, config.pbtxt of its Triton backend.

In: a Recipe. Out: steps and texts. Runs nothing.
"""

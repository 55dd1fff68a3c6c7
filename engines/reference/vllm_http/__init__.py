"""The reference engine behind vLLM's HTTP wire: completions, tokens in and tokens out, models, tokenizer, metrics.

Bodies and error texts are vLLM 0.32's; tests/engines/wires/test_vllm_wire.py runs on both.
"""

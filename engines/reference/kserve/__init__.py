"""The reference engine behind Triton's wire: KServe v2 gRPC with the tensors of TensorRT-LLM's `tensorrt_llm` model.

Behaviour and error texts are those of tritonserver 2.51; tests/engines/wires/test_kserve_wire.py runs on both.
"""

"""Recipes: how TensorRT-LLM builds and runs one model; the YAML files beside the modules are those that ship."""

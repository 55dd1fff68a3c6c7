"""The mock engine: a C program that speaks vLLM's protocol and generates nothing. It is built on first use."""

"""How fast the GPUs of a node sum what they share, and what that means for tensor parallelism."""

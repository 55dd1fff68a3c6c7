"""All-reduces between the GPUs of a node: how fast they are, and which tensor parallelism that favours."""

"""OpenAI's API without I/O: bodies to core on the way in, core to bytes on the way out."""

"""Anthropic's Messages API: bodies in, answers as content blocks out. Knows no engine, no tokens and no HTTP."""

"""The data plane's benchmark: gateways compared in front of a mock engine, on one core each.

`make bench` runs it. It starts the gateways by their command lines and imports none of them.
"""

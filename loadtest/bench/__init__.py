"""What a token costs on its way through: gateways beside one another in front of a mock engine, on one core each.

`python -m loadtest.bench` measures; this package starts the gateways by their command lines and imports none of them.
"""

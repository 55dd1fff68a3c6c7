"""gRPC without generated stubs: a call's bytes out, its messages' bytes in, by plain calls.

`h2_client` speaks HTTP/2 itself at a fraction of grpc.aio's cost, in cleartext or in TLS; `unary` awaits one response.
Knows no protobuf, no Triton and no error of the gateway's, only gRPC statuses.
"""

"""gRPC without generated stubs: a call's bytes out, its messages' bytes in, by plain calls.

One seam, `channel`, with two clients behind it: `h2_client` speaks cleartext HTTP/2 itself at a fraction of grpc.aio's
cost; `aio_client` is grpc.aio, for TLS. Knows no protobuf, no Triton and no error of the gateway's, only gRPC statuses.
"""

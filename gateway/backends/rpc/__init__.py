"""gRPC without generated stubs: a call's bytes out, its messages' bytes in, by plain calls.

One seam (channel), two clients behind it. `h2_client` speaks cleartext HTTP/2 itself and costs a fraction of grpc.aio;
`aio` is grpc.aio, for TLS. Knows no protobuf, no Triton, no error of the gateway's: a call ends in a gRPC status.
"""

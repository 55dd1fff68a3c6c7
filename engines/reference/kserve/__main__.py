"""python -m engines.reference.kserve: serve the reference engine as Triton serves TensorRT-LLM."""

import argparse
import sys

from grpc import aio
from tritonclient.grpc import service_pb2_grpc as rpc

from engines import process
from engines.reference import launch
from engines.reference.kserve.metrics import serve_metrics
from engines.reference.kserve.model import ServedModel
from engines.reference.kserve.service import InferenceService
from engines.reference.trtllm_contract import Limits

OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second server on the port is an error
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients may ping every ten seconds
    ("grpc.keepalive_permit_without_calls", 1),
)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines.reference.kserve", description=__doc__)
    parser.add_argument("--grpc-port", type=int, default=8001, help="default: %(default)s; 0 lets the system choose")
    parser.add_argument("--metrics-port", type=int, default=8002, help="default: %(default)s; 0 lets the system choose")
    parser.add_argument(
        "--no-guided-decoding",
        action="store_true",
        help="refuse guides, as a model whose guided_decoding_backend is empty",
    )
    launch.add_options(parser, served_model_name="tensorrt_llm")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    stopped = process.stop_signal()
    async with launch.run_engine(options) as (abilities, runner):
        grammars = None if options.no_guided_decoding else abilities.grammars
        limits = Limits(
            abilities.vocab_size,
            abilities.context_length,
            grammars.walk if grammars else None,
            unfollowed={} if abilities.computes else {"return_log_probs": "it computes nothing"},
        )
        model = ServedModel(options.served_model_name, runner, limits)
        service = InferenceService(model)
        with serve_metrics(model, options.host, options.metrics_port) as metrics_port:
            server, grpc_port = await start_grpc(service, options.host, options.grpc_port)
            process.announce(f"grpc://{options.host}:{grpc_port} http://{options.host}:{metrics_port}/metrics")
            await stopped.wait()
            service.end_streams()
            await server.stop(grace=1)


async def start_grpc(service: InferenceService, host: str, port: int) -> tuple[aio.Server, int]:
    process.check_free(host, port)
    server = aio.server(options=OPTIONS)
    rpc.add_GRPCInferenceServiceServicer_to_server(service, server)
    try:
        port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as exc:
        raise process.cannot_listen(host, port, "gRPC cannot bind it") from exc
    await server.start()
    return server, port


if __name__ == "__main__":
    sys.exit(process.run(serve(parse(sys.argv[1:]))))

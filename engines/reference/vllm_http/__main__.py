"""python -m engines.reference.vllm_http: serve the reference engine as vLLM's API server serves a model."""

import argparse
import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from engines import process
from engines.reference import launch
from engines.reference.vllm_http.app import application
from engines.reference.vllm_http.served import ServedModel

UVICORN: dict[str, Any] = {  # options of many types
    "http": "httptools",
    "lifespan": "off",
    "access_log": False,
    "log_level": "warning",
    "timeout_graceful_shutdown": 1,
}


class Server(uvicorn.Server):
    """Sets an event when it listens, and leaves signals to engines/process.py, which ends the answers first."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engines.reference.vllm_http", description=__doc__)
    parser.add_argument("--port", type=int, default=8010, help="default: %(default)s; 0 lets the system choose")
    parser.add_argument(
        "--no-scale-out",
        action="store_true",
        help="refuse /inference/v1/generate, as vLLM does without --enable-scale-out",
    )
    parser.add_argument(
        "--enable-prompt-tokens-details",
        action="store_true",
        help="show in usage how many prompt tokens a prefix cache had, as vLLM does with this option",
    )
    launch.add_options(parser, served_model_name="crossover-mini")
    return parser.parse_args(arguments)


async def serve(options: argparse.Namespace) -> None:
    stopped = process.stop_signal()
    with process.bind(options.host, options.port) as listener:
        async with launch.run_engine(options) as (abilities, runner):
            model = ServedModel(options.served_model_name, options.model_dir, abilities, runner)
            model.shows_cached = options.enable_prompt_tokens_details
            app = application(model, scales_out=not options.no_scale_out)
            server = Server(uvicorn.Config(app, **UVICORN))
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listener]))
                await server.listens.wait()
                process.announce(f"http://{options.host}:{listener.getsockname()[1]}")
                await stopped.wait()
                model.abort_all()
                server.should_exit = True


if __name__ == "__main__":
    sys.exit(process.run(serve(parse(sys.argv[1:]))))

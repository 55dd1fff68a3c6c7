"""The gateways that are measured beside one another: how each is found, configured and started.

In: a name and a Site, which says where the mock engine listens. Out: a Launch. Whoever is not installed has a line that
says how it would be.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

from loadtest.bench.client import Wire
from loadtest.bench.http import free_ports
from loadtest.bench.mock import MODEL
from loadtest.bench.processes import Launch

# A stop string that no answer holds, but whose first character is looked for in all of them.
STOP = "\\nQuestion:"
POLICY = {"kind": "threshold", "low": "a", "high": "b", "up": 48, "down": 40, "dwell_s": 1.0}
SYSTEM_PATH = (os.defpath, "/usr/sbin", "/usr/local/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Site:
    """What a system is started with. `folder` is its own, for configurations and the like.

    `engine`, `socket`: where the mock engine is to be found, by TCP and in the file system.
    """

    program: Path
    port: int
    engine: str
    folder: Path
    tokenizer: Path | None = None
    workers: int = 1
    socket: Path | None = None

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@dataclass(frozen=True, slots=True)
class System:
    """One gateway. `program` is its command; `launch` is None for the mock engine itself, which already runs."""

    name: str
    program: str
    install: str
    launch: Callable[[Site], Launch] | None
    wire: Wire = "text"
    stop: str | None = None
    workers: int = 1
    version_flag: str | None = None

    def find(self, places: Mapping[str, Path]) -> Path | None:
        """Its command: where `places` says, else on the PATH and where servers are installed."""
        given = places.get(self.name) or places.get(self.program)
        if given is not None:
            return given if given.exists() else None
        if self.program == "crossover":
            return Path(sys.executable).with_name("crossover")
        path = os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_PATH])  # noqa: TID251 - a process launcher
        found = shutil.which(self.program, path=path)
        return Path(found) if found else None

    def version(self, program: Path) -> str:
        if self.program == "crossover":
            return version("crossover")
        if self.version_flag:
            told = subprocess.run([program, self.version_flag], capture_output=True, text=True, check=False, timeout=20)
            found = re.search(r"\d+\.\d+[\w.]*", told.stdout + told.stderr)
            return found[0] if found else "unknown"
        pattern = f"lib/python*/site-packages/{self.program.replace('-', '_')}-*.dist-info"
        metadata = sorted(program.resolve().parents[1].glob(pattern))
        return metadata[0].name.split("-")[1].removesuffix(".dist") if metadata else "unknown"


def _nginx(site: Site) -> Launch:
    """One worker, nothing buffered, connections kept on both sides."""
    folder = site.folder
    scratch = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = f"""
worker_processes {site.workers};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 16384; multi_accept on; }}
http {{
  access_log off; {scratch}
  tcp_nodelay on; keepalive_timeout 600s; keepalive_requests 100000000;
  upstream engine {{
    server {site.engine.removeprefix("http://")};
    keepalive 2048; keepalive_timeout 600s; keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{site.port} backlog=4096;
    client_body_buffer_size 128k;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
    return Launch([str(site.program), "-e", f"{folder}/error.log", "-c", str(site.write("nginx.conf", text))])


def _haproxy(site: Site) -> Launch:
    text = f"""
global
  nbthread {site.workers}
  maxconn 9000
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-no-delay
  option abortonclose
  http-reuse always
frontend clients
  bind 127.0.0.1:{site.port} backlog 4096
  default_backend engine
backend engine
  server mock {site.engine.removeprefix("http://")} pool-max-conn -1 pool-purge-delay 600s
"""
    return Launch([str(site.program), "-db", "-f", str(site.write("haproxy.cfg", text))])


def _router_arguments(site: Site) -> list[str]:
    [metrics] = free_ports(1)
    arguments = {
        "host": "127.0.0.1",
        "port": site.port,
        "worker-urls": site.engine,
        "policy": "round_robin",
        "prometheus-port": metrics,
    }
    return [text for name, value in arguments.items() for text in (f"--{name}", str(value))]


def _vllm_router(site: Site) -> Launch:
    extra = ["--log-level", "warning", "--max-concurrent-requests", "20000"]
    return Launch([str(site.program), *_router_arguments(site), *extra])


def _smg(site: Site) -> Launch:
    return Launch([str(site.program), "launch", *_router_arguments(site), "--log-level", "warn"])


def _litellm(site: Site) -> Launch:
    route = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{site.engine}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": route}],
        "litellm_settings": {"set_verbose": False, "telemetry": False, "request_timeout": 6000},
    }
    arguments = ["--config", str(site.write("litellm.yaml", yaml.safe_dump(config)))]
    arguments += ["--host", "127.0.0.1", "--port", str(site.port), "--num_workers", str(site.workers)]
    environment = {
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return Launch([str(site.program), *arguments], environment)


def _crossover(site: Site, model: Mapping[str, object]) -> Launch:
    config = {"listen": f"127.0.0.1:{site.port}", "models": [{"id": MODEL, **model, "policy": POLICY}]}
    path = site.write("crossover.yaml", yaml.safe_dump(config, sort_keys=False))
    workers = ["--workers", str(site.workers)] if site.workers > 1 else []
    return Launch([str(site.program), "serve", "-c", str(path), *workers])


def _relay_lane(site: Site) -> Launch:
    """A live policy between two backends, both of them the mock engine."""
    backend = {"kind": "relay", "url": site.engine}
    return _crossover(site, {"backends": {"a": backend, "b": dict(backend)}})


def _token_lane(site: Site) -> Launch:
    return _token_lane_to(site.engine, site)


def _token_lane_through_socket(site: Site) -> Launch:
    return _token_lane_to(f"http://unix:{site.socket}", site)


def _token_lane_to(engine: str, site: Site) -> Launch:
    backend = {"kind": "vllm", "url": engine}
    return _crossover(site, {"tokenizer": str(site.tokenizer), "backends": {"a": backend, "b": dict(backend)}})


def _pip(package: str, *also: str) -> str:
    """`also`: what a package needs and does not name."""
    name = package.partition("[")[0].partition("=")[0]
    environment = f".bench/peers/{name}"
    packages = " ".join((f"'{package}'", *also))
    return f"python3 -m venv {environment} && {environment}/bin/pip install {packages}"


DIRECT = System("direct", "", "", None)

SYSTEMS = {
    system.name: system
    for system in (
        DIRECT,
        System("nginx", "nginx", "apt-get install nginx-light", _nginx, version_flag="-v"),
        System("haproxy", "haproxy", "apt-get install haproxy", _haproxy, version_flag="-v"),
        System(
            "vllm-router",
            "vllm-router",
            _pip("vllm-router==0.1.17", "fastapi", "uvicorn", "aiohttp", "orjson"),
            _vllm_router,
        ),
        System("smg", "smg", _pip("smg==1.13.0"), _smg),
        System("litellm", "litellm", _pip("litellm[proxy]==1.109.1"), _litellm),
        System("crossover-relay", "crossover", "make install", _relay_lane),
        System("crossover-relay-2w", "crossover", "make install", _relay_lane, workers=2),
        System("crossover-token", "crossover", "make install", _token_lane, wire="ids", stop=STOP),
        System("crossover-token-2w", "crossover", "make install", _token_lane, wire="ids", stop=STOP, workers=2),
        System("crossover-token-unix", "crossover", "make install", _token_lane_through_socket, wire="ids", stop=STOP),
    )
}

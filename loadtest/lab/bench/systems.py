"""The gateways that are compared: how each is found, configured and started.

In: a name and a Site, which has the mock engine's address. Out: a Launch. A gateway that is not installed has a line on
how to install it.
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
from string import Template
from typing import Literal

import yaml

from loadtest.mock_engine.engine import MODEL
from loadtest.mock_engine.http import free_ports
from loadtest.mock_engine.process import Launch

Wire = Literal["text", "ids"]
CONFIGS = Path(__file__).parent / "configs"

# A stop string that occurs in no answer, but whose first character is searched for in all of them.
STOP = "\\nQuestion:"
POLICY = {"kind": "threshold", "low": "a", "high": "b", "up": 48, "down": 40, "dwell_s": 1.0}
SYSTEM_PATH = (os.defpath, "/usr/sbin", "/usr/local/sbin", "/usr/local/bin")


@dataclass(frozen=True, slots=True)
class Site:
    """What a system is started with. `folder`: the system's own, for configurations and the like. `engine`, `socket`:
    the mock engine's addresses, by TCP and in the file system.
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

    def fill_in(self, name: str) -> Path:
        """Writes a configuration of this site, from the template configs/`name`, and returns its path."""
        engine = self.engine.removeprefix("http://")
        values = {"workers": self.workers, "port": self.port, "folder": self.folder, "engine": engine}
        return self.write(name, Template((CONFIGS / name).read_text()).substitute(values))


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
        """Finds its command: in `places`, else on the PATH or in the folders of servers."""
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
            shown = subprocess.run(
                [program, self.version_flag], capture_output=True, text=True, check=False, timeout=20
            )
            found = re.search(r"\d+\.\d+[\w.]*", shown.stdout + shown.stderr)
            return found[0] if found else "unknown"
        pattern = f"lib/python*/site-packages/{self.program.replace('-', '_')}-*.dist-info"
        metadata = sorted(program.resolve().parents[1].glob(pattern))
        return metadata[0].name.split("-")[1].removesuffix(".dist") if metadata else "unknown"


def _nginx(site: Site) -> Launch:
    return Launch([str(site.program), "-e", f"{site.folder}/error.log", "-c", str(site.fill_in("nginx.conf"))])


def _haproxy(site: Site) -> Launch:
    return Launch([str(site.program), "-db", "-f", str(site.fill_in("haproxy.cfg"))])


def _router_arguments(site: Site) -> list[str]:
    [metrics] = free_ports(1)
    arguments = ["--host", "127.0.0.1", "--port", str(site.port), "--worker-urls", site.engine]
    return [*arguments, "--policy", "round_robin", "--prometheus-port", str(metrics)]


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


def launch_crossover(site: Site, model: Mapping[str, object]) -> Launch:
    """Returns the launch of Crossover with one model. `model`: its entry in crossover.yaml, without its name."""
    config = {"listen": f"127.0.0.1:{site.port}", "models": [{"id": MODEL, **model}]}
    path = site.write("crossover.yaml", yaml.safe_dump(config, sort_keys=False))
    workers = ["--workers", str(site.workers)] if site.workers > 1 else []
    return Launch([str(site.program), "serve", "-c", str(path), *workers])


def _lane(site: Site, kind: str, engine: str, **model: object) -> Launch:
    """Returns the launch of Crossover with a live policy between two backends, both of them the mock engine."""
    backends = {name: {"kind": kind, "url": engine} for name in ("a", "b")}
    return launch_crossover(site, {**model, "backends": backends, "policy": POLICY})


def _relay_lane(site: Site) -> Launch:
    return _lane(site, "relay", site.engine)


def _token_lane(site: Site) -> Launch:
    return _lane(site, "vllm", site.engine, tokenizer=str(site.tokenizer))


def _token_lane_through_socket(site: Site) -> Launch:
    return _lane(site, "vllm", f"http://unix:{site.socket}", tokenizer=str(site.tokenizer))


def _pip(package: str, *also: str) -> str:
    """Returns a command that installs a package. `also`: dependencies that the package does not declare."""
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

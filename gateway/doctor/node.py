"""The rules for the node as a whole: ports, keys, limits, memory, drivers. Pure.

In: settings, the reports on the engines, what is known of this machine. Out: findings. What is on another machine, or
hidden in a container, is not judged.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.address import is_loopback, make_url, parse_target
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.gpus import Gpu
from gateway.doctor.recognise import CROSSOVER
from gateway.doctor.statements import Topic
from gateway.doctor.subjects import EngineReport
from gateway.settings import Settings

GATEWAY, NODE = "gateway", "node"
LOOPBACK = "127.0.0.1"
EVERYWHERE = frozenset({"0.0.0.0", "::"})

SOCKETS_PER_REQUEST = 2  # the client's, and one to a vLLM; Triton's streams share connections
OTHER_FILES = 128
MIN_SHARED_MEMORY = 8 << 30  # what engines of several GPUs are started with (docs/doctor.md)
MAX_SHARE = 0.95  # of a GPU's memory: CUDA contexts, NCCL and graphs take the rest

TRTLLM = "tensorrtllm"  # the C++ Triton backend, as an engine's identity has it in `platform`
# By engine, the oldest release that tests and measurements of this gateway have been run with.
OLDEST = {"vllm": (0, 24), "triton": (2, 51)}
# The driver that NVIDIA's support matrix lists for the container of a Triton release with TensorRT-LLM.
DRIVERS = {"2.68": "590.44.01", "2.69": "590.44.01", "2.70": "590.44.01", "2.71": "590.44.01"}


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine. `open_files`: the limit of the gateway that runs here, else this process's own. `listening`: a
    description of the server at the gateway's address, if there is one. `stale`: by model, how its engines changed.
    `has_keys`: whether the gateway's key file has any."""

    open_files: int
    gpus: tuple[Gpu, ...] = ()
    listening: str | None = None
    stale: Mapping[str, Sequence[str]] | None = None
    has_keys: bool = False


def find_node_faults(settings: Settings, engines: Collection[EngineReport], machine: Machine) -> Iterator[Finding]:
    yield from find_clashes(settings)
    yield from find_gateway_faults(settings, machine)
    yield from find_few_files(engines, machine.open_files)
    for engine in engines:
        yield from find_small_memory(engine)
        yield from find_old_release(engine)
        yield from find_old_driver(engine, machine.gpus)
    for gpu in machine.gpus:
        yield from find_overcommitment(gpu, [engine for engine in engines if gpu.index in engine.gpus])


def find_clashes(settings: Settings) -> Iterator[Finding]:
    """Finds addresses with two servers. One server may stand behind several models, not behind two kinds of backend."""
    owners: dict[str, dict[str, None]] = {}
    for model in settings.models:
        for owner, url in (server for backend in model.backends.values() for server in backend.servers()):
            owners.setdefault(_address(url), {})[owner] = None
    if settings.listen_port:
        owners.setdefault(_address(own_url(settings)), {})["the gateway itself"] = None
    for address, names in owners.items():
        if len(names) > 1:
            yield Finding(Fault.PORTS_CLASH, NODE, f"{address} is to be {' and '.join(names)}")


def own_url(settings: Settings) -> str:
    """Returns the gateway's URL for a client on this machine."""
    return make_url(LOOPBACK if settings.listen_host in EVERYWHERE else settings.listen_host, settings.listen_port)


def _address(url: str) -> str:
    target = parse_target(url)
    if target.socket_path is not None:
        return target.socket_path
    return urlsplit(url).netloc.replace("localhost:", f"{LOOPBACK}:")


def find_gateway_faults(settings: Settings, machine: Machine) -> Iterator[Finding]:
    address = f"{settings.listen_host}:{settings.listen_port}"
    if not (settings.operator_key or machine.has_keys or is_loopback(settings.listen_host)):
        yield Finding(Fault.OPEN_TO_EVERYONE, GATEWAY, f"it listens on {address}, and has no key for operators")
    if machine.listening is not None and machine.listening != CROSSOVER:
        yield Finding(Fault.LISTEN_TAKEN, GATEWAY, f"{address} is {machine.listening}")
    for model, changes in (machine.stale or {}).items():
        if changes:
            yield Finding(Fault.POLICY_STALE, f"{GATEWAY} ({model})", "; ".join(changes))


def find_few_files(engines: Collection[EngineReport], limit: int) -> Iterator[Finding]:
    known = [statement for engine in engines if (statement := engine.account.get(Topic.CAPACITY)) is not None]
    capacity = round(sum(statement.value for statement in known))
    needed = SOCKETS_PER_REQUEST * capacity + OTHER_FILES
    if limit < needed:
        seen = f"{limit} open files are allowed, {capacity} requests that the engines run at once may take {needed}"
        yield Finding(Fault.FEW_OPEN_FILES, GATEWAY, seen)


def find_small_memory(engine: EngineReport) -> Iterator[Finding]:
    """Judges only engines on several GPUs: on one GPU, processes share little memory."""
    listener = engine.listener
    if listener is None or listener.shared_memory_bytes is None or len(engine.gpus) < 2:
        return
    if listener.shared_memory_bytes < MIN_SHARED_MEMORY:
        seen = f"its /dev/shm holds {listener.shared_memory_bytes / (1 << 30):.2g} GiB, and it runs on several GPUs"
        yield Finding(Fault.SMALL_SHARED_MEMORY, engine.subject.where, seen)


def find_old_release(engine: EngineReport) -> Iterator[Finding]:
    version = str(engine.identity.get("version", ""))
    oldest = OLDEST.get(str(engine.identity.get("engine")))
    if oldest is not None and version and _as_numbers(version) < oldest:
        yield Finding(Fault.RELEASE_OLD, engine.subject.where, f"its version is {version}")


def find_old_driver(engine: EngineReport, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Judges only Triton's container image: Triton's version shows its release."""
    version = str(engine.identity.get("version", ""))
    wanted = DRIVERS.get(".".join(version.split(".")[:2])) if engine.identity.get("platform") == TRTLLM else None
    if wanted is not None and gpus and _as_numbers(gpus[0].driver) < _as_numbers(wanted):
        seen = f"driver {gpus[0].driver}; Triton {version} was released with {wanted}"
        yield Finding(Fault.DRIVER_OLD, engine.subject.where, seen)


def find_overcommitment(gpu: Gpu, engines: Sequence[EngineReport]) -> Iterator[Finding]:
    """Judges the memory that engines on one GPU claim. `engines`: the engines that have a process on that GPU."""
    if len(engines) < 2:
        return
    name = f"GPU {gpu.index} ({gpu.name})"
    shares = {engine.subject.where: engine.account[Topic.GPU_SHARE].value for engine in engines if _has_share(engine)}
    if (total := sum(shares.values())) > MAX_SHARE:
        claims = ", ".join(f"{share:g} by {where}" for where, share in shares.items())
        yield Finding(Fault.MEMORY_OVERCOMMITTED, NODE, f"{name}: {total:g} of its memory is claimed, {claims}")
    for engine in engines:
        fixed = engine.account.get(Topic.HAS_FIXED_CACHE)
        if engine.identity.get("engine") == "triton" and fixed is not None and not fixed.value:
            others = len(engines) - 1
            seen = f"{name} has {others} other engine{'s' * (others > 1)}; {fixed.source}"
            yield Finding(Fault.MEMORY_BY_START_ORDER, engine.subject.where, seen)


def _has_share(engine: EngineReport) -> bool:
    """Returns whether the engine's memory share is known and bounds it. With a fixed-size cache it bounds nothing."""
    fixed = engine.account.get(Topic.HAS_FIXED_CACHE)
    return Topic.GPU_SHARE in engine.account and not (fixed is not None and fixed.value)


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())

"""What does not fit together on the node: ports, keys, limits, memory, drivers. Pure.

In: settings, what was seen of the engines and of this machine. Out: findings. What is on another machine, or hidden in
a container, is not judged.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.address import parse_target
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.gpus import Gpu
from gateway.doctor.processes import is_loopback
from gateway.doctor.sights import Sight
from gateway.doctor.statements import Topic
from gateway.doctor.triton_config import TRTLLM
from gateway.settings import ModelSettings, Settings, TritonSettings, VLLMSettings

GATEWAY, NODE = "gateway", "node"
LOOPBACK = "127.0.0.1"
EVERYWHERE = frozenset({"0.0.0.0", "::"})

SOCKETS_PER_REQUEST = 2  # the client's, and one to a vLLM; Triton's streams share connections
OTHER_FILES = 128
LEAST_SHARED_MEMORY = 8 << 30  # what engines of several GPUs are started with (docs/doctor.md)
MOST_SHARE = 0.95  # of a GPU's memory, for CUDA contexts, NCCL and graphs take the rest

# By engine, what tests and measurements of this gateway have been run with.
OLDEST = {"vllm": (0, 24), "triton": (2, 51)}
# The driver that NVIDIA's support matrix lists for the container of a Triton release with TensorRT-LLM.
DRIVERS = {"2.68": "590.44.01", "2.69": "590.44.01", "2.70": "590.44.01", "2.71": "590.44.01"}


@dataclass(frozen=True, slots=True)
class Machine:
    """This one. `open_files`: the limit of the gateway that runs here, else our own. `listening`: what answers where
    the gateway is to listen, in words, if anything does. `stale`: of each model, how its engines changed."""

    open_files: int
    gpus: tuple[Gpu, ...] = ()
    listening: str | None = None
    stale: Mapping[str, Sequence[str]] | None = None


def find_node_faults(settings: Settings, sights: Collection[Sight], machine: Machine) -> Iterator[Finding]:
    yield from find_clashes(settings)
    yield from find_gateway_faults(settings, machine)
    yield from find_few_files(sights, machine.open_files)
    for sight in sights:
        yield from find_small_memory(sight)
        yield from find_old_release(sight)
        yield from find_old_driver(sight, machine.gpus)
    for gpu in machine.gpus:
        yield from find_overcommitment(gpu, [sight for sight in sights if gpu.index in sight.gpus])


def find_clashes(settings: Settings) -> Iterator[Finding]:
    """By address: one server may stand behind several models, but not behind two kinds of backend."""
    owners: dict[str, dict[str, None]] = {}
    for model in settings.models:
        for owner, address in _addresses(model):
            owners.setdefault(address, {})[owner] = None
    if settings.listen_port:
        host = LOOPBACK if settings.listen_host in EVERYWHERE else settings.listen_host
        owners.setdefault(f"{host}:{settings.listen_port}", {})["the gateway itself"] = None
    for address, names in owners.items():
        if len(names) > 1:
            yield Finding(Fault.PORTS_CLASH, NODE, f"{address} is to be {' and '.join(names)}")


def _addresses(model: ModelSettings) -> Iterator[tuple[str, str]]:
    """What is to speak there, and the address. The page of anything but Triton may be on its own port."""
    for backend in model.backends.values():
        kind = {TritonSettings: "a Triton's gRPC", VLLMSettings: "a vLLM"}.get(type(backend), "a relay's server")
        yield kind, _address(backend.url)
        if isinstance(backend, TritonSettings) and backend.metrics_url is not None:
            yield "a Triton's metrics page", _address(backend.metrics_url)


def _address(url: str) -> str:
    target = parse_target(url)
    if target.socket_path is not None:
        return target.socket_path
    return urlsplit(url).netloc.replace("localhost:", f"{LOOPBACK}:")


def find_gateway_faults(settings: Settings, machine: Machine) -> Iterator[Finding]:
    address = f"{settings.listen_host}:{settings.listen_port}"
    if settings.operator_key is None and not is_loopback(settings.listen_host):
        yield Finding(Fault.OPEN_TO_EVERYONE, GATEWAY, f"it listens on {address}, and has no operator key")
    if machine.listening is not None and machine.listening != "a Crossover gateway":
        yield Finding(Fault.LISTEN_TAKEN, GATEWAY, f"{address} is {machine.listening}")
    for model, changes in (machine.stale or {}).items():
        if changes:
            yield Finding(Fault.POLICY_STALE, f"{GATEWAY} ({model})", "; ".join(changes))


def find_few_files(sights: Collection[Sight], limit: int) -> Iterator[Finding]:
    told = [statement for sight in sights if (statement := sight.account.get(Topic.CAPACITY)) is not None]
    capacity = round(sum(statement.value for statement in told))
    needed = SOCKETS_PER_REQUEST * capacity + OTHER_FILES
    if limit < needed:
        seen = f"{limit} open files are allowed, {capacity} requests that the engines run at once may take {needed}"
        yield Finding(Fault.FEW_OPEN_FILES, GATEWAY, seen)


def find_small_memory(sight: Sight) -> Iterator[Finding]:
    """Where there is one GPU for an engine at most, little is shared."""
    listener = sight.listener
    if listener is None or listener.shared_memory_bytes is None or len(sight.gpus) < 2:
        return
    if listener.shared_memory_bytes < LEAST_SHARED_MEMORY:
        seen = f"its /dev/shm holds {listener.shared_memory_bytes / (1 << 30):.2g} GiB, and it runs on several GPUs"
        yield Finding(Fault.SMALL_SHARED_MEMORY, sight.subject.where, seen)


def find_old_release(sight: Sight) -> Iterator[Finding]:
    version = str(sight.identity.get("version", ""))
    oldest = OLDEST.get(str(sight.identity.get("engine")))
    if oldest is not None and version and _as_numbers(version) < oldest:
        yield Finding(Fault.RELEASE_OLD, sight.subject.where, f"it says that it is {version}")


def find_old_driver(sight: Sight, gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Of the one image whose release the engine tells: Triton's version names it."""
    version = str(sight.identity.get("version", ""))
    wanted = DRIVERS.get(".".join(version.split(".")[:2])) if sight.identity.get("platform") == TRTLLM else None
    if wanted is not None and gpus and _as_numbers(gpus[0].driver) < _as_numbers(wanted):
        seen = f"driver {gpus[0].driver}; Triton {version} was released with {wanted}"
        yield Finding(Fault.DRIVER_OLD, sight.subject.where, seen)


def find_overcommitment(gpu: Gpu, sights: Sequence[Sight]) -> Iterator[Finding]:
    """`sights`: of the engines that have a process on that GPU."""
    if len(sights) < 2:
        return
    name = f"GPU {gpu.index} ({gpu.name})"
    shares = {sight.subject.where: sight.account[Topic.GPU_SHARE].value for sight in sights if _has_share(sight)}
    if (total := sum(shares.values())) > MOST_SHARE:
        claims = ", ".join(f"{share:g} by {where}" for where, share in shares.items())
        yield Finding(Fault.MEMORY_OVERCOMMITTED, NODE, f"{name}: {total:g} of its memory is claimed, {claims}")
    for sight in sights:
        fixed = sight.account.get(Topic.HAS_FIXED_CACHE)
        if sight.identity.get("engine") == "triton" and fixed is not None and not fixed.value:
            others = len(sights) - 1
            seen = f"{name} has {others} other engine{'s' * (others > 1)}; {fixed.source}"
            yield Finding(Fault.MEMORY_BY_START_ORDER, sight.subject.where, seen)


def _has_share(sight: Sight) -> bool:
    """With a cache of fixed size vLLM's share bounds nothing."""
    fixed = sight.account.get(Topic.HAS_FIXED_CACHE)
    return Topic.GPU_SHARE in sight.account and not (fixed is not None and fixed.value)


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())

"""What accounts and the node's facts mean, as tables: no server, no clock."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.stacks import WEIGHTS
from gateway.configuration import parse_settings
from gateway.doctor.faults import Fault, Finding
from gateway.doctor.gpus import Gpu
from gateway.doctor.node import Machine, find_node_faults
from gateway.doctor.processes import Listener
from gateway.doctor.rules import find_features_off, find_narrow_front_end, find_tight_limits, find_uncredited
from gateway.doctor.statements import Account, Statement, Topic
from gateway.doctor.subjects import EngineReport, Subject
from gateway.engine_kinds.openai_server import OpenAIReader
from gateway.evidence import Engine, Http, Place
from gateway.language import ModelLanguage
from gateway.settings import Settings

TRITON = {"kind": "triton", "url": "grpc://127.0.0.1:8001", "metrics_url": "http://127.0.0.1:8002/metrics"}
BACKENDS = {"triton": TRITON, "vllm": {"kind": "vllm", "url": "http://127.0.0.1:8010"}}
POLICY = {"kind": "threshold", "low": "triton", "high": "vllm", "up": 48, "down": 40}
MODEL = {"id": "m", "tokenizer": str(WEIGHTS), "backends": BACKENDS, "policy": POLICY}
DOCUMENT: Mapping[str, Any] = {"models": [MODEL]}  # Any: YAML


def configure(**settings: object) -> Settings:
    return parse_settings({**DOCUMENT, **settings}, environ={})


def account_of(facts: Mapping[Topic, float]) -> Account:
    return {topic: Statement(topic, value, "a table") for topic, value in facts.items()}


def faults(findings: Iterable[Finding]) -> list[Fault]:
    return [finding.fault for finding in findings]


@pytest.fixture(scope="module")
def language() -> ModelLanguage:
    return ModelLanguage.load(WEIGHTS)


def subject(name: str, language: ModelLanguage | None = None) -> Subject:
    (model,) = configure().models
    reader = OpenAIReader(Http(), model.backends[name].url, None)  # rules ask nobody
    return Subject(Engine(reader, (Place("m", name),)), model.backends[name], (model,), language)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, []),
        (dict.fromkeys(Topic, True), []),
        ({Topic.IN_FLIGHT_BATCHING: False}, [Fault.IN_FLIGHT_BATCHING_OFF]),
        ({Topic.PAGED_KV: False}, [Fault.PAGED_KV_OFF]),
        ({Topic.CHUNKED_PREFILL: False}, [Fault.CHUNKED_PREFILL_OFF]),
        ({Topic.PREFIX_CACHING: False}, [Fault.PREFIX_CACHING_OFF]),
        ({Topic.CUDA_GRAPHS: False, Topic.IS_ON_GPU: True}, [Fault.CUDA_GRAPHS_OFF]),
        ({Topic.CUDA_GRAPHS: False, Topic.IS_ON_GPU: False}, []),  # a CPU has none
        ({Topic.CUDA_GRAPHS: False}, []),
        ({Topic.FP8: False, Topic.FP8_KV: False}, []),  # a choice, unless it is credited
    ],
)
def test_a_feature_that_is_off_is_a_fault_where_it_could_be_on(
    facts: Mapping[Topic, float], found: list[Fault]
) -> None:
    assert faults(find_features_off("triton (m)", account_of(facts))) == found


def test_a_credited_feature_has_to_be_shown() -> None:
    account = account_of({Topic.FP8: True, Topic.CUDA_GRAPHS: False})
    findings = list(find_uncredited("vllm (m)", account, {Topic.FP8, Topic.CUDA_GRAPHS, Topic.PAGED_KV}))
    assert faults(findings) == [Fault.CREDITED_NOT_SHOWN] * 2
    assert [finding.seen for finding in findings] == [
        "cuda_graphs is off by a table",
        "nothing says whether paged_kv is on",
    ]


@pytest.mark.parametrize(
    ("name", "facts", "found"),
    [
        ("vllm", {}, []),
        ("vllm", {Topic.CONTEXT_LENGTH: 1024, Topic.CAPACITY: 48}, []),
        ("vllm", {Topic.CONTEXT_LENGTH: 1023}, [Fault.CONTEXT_BEYOND_ENGINE]),
        ("vllm", {Topic.CONTEXT_LENGTH: 4096}, []),
        ("vllm", {Topic.CAPACITY: 47}, [Fault.CAPACITY_BELOW_THRESHOLD]),
        ("triton", {Topic.CAPACITY: 47}, []),  # at 48 they go over
        ("triton", {Topic.CAPACITY: 46}, [Fault.CAPACITY_BELOW_THRESHOLD]),
    ],
)
def test_an_engines_limits_are_held_against_what_it_will_be_sent(
    language: ModelLanguage, name: str, facts: Mapping[Topic, float], found: list[Fault]
) -> None:
    assert faults(find_tight_limits(subject(name, language), account_of(facts))) == found


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, []),
        ({Topic.HAS_SEVERAL_API_PROCESSES: True, Topic.CAPACITY: 1024}, []),
        ({Topic.HAS_SEVERAL_API_PROCESSES: False}, [Fault.ONE_API_PROCESS]),
        ({Topic.HAS_SEVERAL_API_PROCESSES: False, Topic.CAPACITY: 1024}, [Fault.ONE_API_PROCESS]),
        ({Topic.HAS_SEVERAL_API_PROCESSES: False, Topic.CAPACITY: 257}, [Fault.ONE_API_PROCESS]),
        ({Topic.HAS_SEVERAL_API_PROCESSES: False, Topic.CAPACITY: 256}, []),
    ],
)
def test_one_api_process_is_enough_for_few_requests(facts: Mapping[Topic, float], found: list[Fault]) -> None:
    assert faults(find_narrow_front_end("vllm (m)", account_of(facts))) == found


MACHINE = Machine(open_files=1024)
H100 = Gpu("0", "NVIDIA H100 80GB HBM3", "590.44.01", frozenset())
SECOND = replace(H100, index="1")
WITH_GPU = replace(MACHINE, gpus=(H100,))


def see(
    name: str, facts: Mapping[Topic, float] | None = None, **rest: Any
) -> EngineReport:  # Any: fields of EngineReport
    return EngineReport(subject(name), (), account_of(facts or {}), **rest)


def listening(shared_memory_bytes: int | None) -> Listener:
    return Listener((7,), ("vllm",), 0, 1024, shared_memory_bytes)


TRTLLM = {"engine": "triton", "version": "2.71.0", "platform": "tensorrtllm"}
NEW_TRITON = see("triton", identity=TRTLLM)
CACHE_BY_MEMORY, FIXED_CACHE = (
    see("triton", {Topic.HAS_FIXED_CACHE: is_fixed}, gpus=("0",), identity=TRTLLM) for is_fixed in (False, True)
)


@pytest.mark.parametrize(
    ("engines", "machine", "found"),
    [
        ((), MACHINE, []),
        ((see("vllm", {Topic.CAPACITY: 256}),), MACHINE, []),
        ((see("vllm", {Topic.CAPACITY: 448}),), MACHINE, []),
        ((see("vllm", {Topic.CAPACITY: 449}),), MACHINE, [Fault.FEW_OPEN_FILES]),
        ((see("vllm", {Topic.CAPACITY: 256}), see("triton", {Topic.CAPACITY: 256})), MACHINE, [Fault.FEW_OPEN_FILES]),
        ((see("vllm", listener=listening(1 << 26), gpus=("0", "1")),), MACHINE, [Fault.SMALL_SHARED_MEMORY]),
        ((see("vllm", listener=listening(1 << 34), gpus=("0", "1")),), MACHINE, []),
        ((see("vllm", listener=listening(1 << 26), gpus=("0",)),), MACHINE, []),
        ((see("vllm", listener=listening(None), gpus=("0", "1")),), MACHINE, []),
        ((see("vllm", identity={"engine": "vllm", "version": "0.23.1"}),), MACHINE, [Fault.RELEASE_OLD]),
        ((see("vllm", identity={"engine": "vllm", "version": "0.24.0rc1.dev3+g1234"}),), MACHINE, []),
        ((see("vllm", identity={"engine": "vllm", "version": "1.0.0"}),), MACHINE, []),
        ((see("vllm", identity={"engine": "vllm"}),), MACHINE, []),
        ((see("triton", identity={"engine": "triton", "version": "2.50.0"}),), MACHINE, [Fault.RELEASE_OLD]),
        ((NEW_TRITON,), WITH_GPU, []),
        ((NEW_TRITON,), replace(MACHINE, gpus=(replace(H100, driver="580.95.05"),)), [Fault.DRIVER_OLD]),
        ((see("triton", identity=TRTLLM | {"version": "2.51.0"}),), WITH_GPU, []),
        ((see("vllm", {Topic.GPU_SHARE: 0.92}, gpus=("0",)),), WITH_GPU, []),
        (
            (see("vllm", {Topic.GPU_SHARE: 0.6}, gpus=("0",)), see("vllm", {Topic.GPU_SHARE: 0.6}, gpus=("1",))),
            replace(MACHINE, gpus=(H100, SECOND)),
            [],
        ),
        ((see("vllm", {Topic.GPU_SHARE: 0.92}, gpus=("0",)), CACHE_BY_MEMORY), WITH_GPU, [Fault.MEMORY_BY_START_ORDER]),
        ((see("vllm", {Topic.GPU_SHARE: 0.45, Topic.HAS_FIXED_CACHE: True}, gpus=("0",)), FIXED_CACHE), WITH_GPU, []),
        ((), replace(MACHINE, listening="a Crossover gateway", stale={"m": ()}), []),
        ((), replace(MACHINE, listening="Triton's HTTP port"), [Fault.LISTEN_TAKEN]),
        (
            (),
            replace(MACHINE, listening="a Crossover gateway", stale={"m": ["vllm version was 1, is 2"]}),
            [Fault.POLICY_STALE],
        ),
    ],
)
def test_what_does_not_fit_together_on_the_node(
    engines: tuple[EngineReport, ...], machine: Machine, found: list[Fault]
) -> None:
    assert faults(find_node_faults(configure(), engines, machine)) == found


def test_two_vllms_that_claim_one_gpu_twice_are_named_with_their_shares() -> None:
    both = [
        EngineReport(subject(name), (), account_of({Topic.GPU_SHARE: share}), gpus=("0",))
        for name, share in (("vllm", 0.6), ("triton", 0.5))
    ]
    (finding,) = find_node_faults(configure(), both, WITH_GPU)
    assert finding.fault is Fault.MEMORY_OVERCOMMITTED
    assert finding.seen == (
        "GPU 0 (NVIDIA H100 80GB HBM3): 1.1 of its memory is claimed, 0.6 by vllm (m), 0.5 by triton (m)"
    )


def with_urls(**urls: str) -> list[Mapping[str, Any]]:  # Any: YAML
    backends = {name: backend | ({"url": urls[name]} if name in urls else {}) for name, backend in BACKENDS.items()}
    return [MODEL | {"backends": backends}]


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, []),
        ({"listen": "127.0.0.1:8010"}, ["127.0.0.1:8010 is to be a vLLM and the gateway itself"]),
        (
            {"listen": "0.0.0.0:8010", "operator_key": "open-sesame-open"},
            ["127.0.0.1:8010 is to be a vLLM and the gateway itself"],
        ),
        (
            {"models": with_urls(vllm="http://localhost:8002")},
            ["127.0.0.1:8002 is to be a Triton's metrics page and a vLLM"],
        ),
        ({"models": with_urls(triton="grpc://127.0.0.1:8010")}, ["127.0.0.1:8010 is to be a Triton's gRPC and a vLLM"]),
        ({"models": with_urls(triton="grpc://triton:8010", vllm="http://vllm:8010")}, []),
    ],
)
def test_two_servers_cannot_have_one_port(settings: Mapping[str, Any], seen: list[str]) -> None:
    findings = list(find_node_faults(configure(**settings), (), MACHINE))
    assert [finding.seen for finding in findings] == seen
    assert set(faults(findings)) <= {Fault.PORTS_CLASH}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"listen": "0.0.0.0:80"}, [Fault.OPEN_TO_EVERYONE]),
        ({"listen": "[::]:80"}, [Fault.OPEN_TO_EVERYONE]),
        ({"listen": "10.0.0.5:80"}, [Fault.OPEN_TO_EVERYONE]),
        ({"listen": "10.0.0.5:80", "operator_key": "open-sesame-open"}, []),
        ({"listen": "[::1]:80"}, []),
        ({"listen": "localhost:80"}, []),
    ],
)
def test_a_gateway_that_others_reach_needs_a_key(settings: Mapping[str, Any], found: list[Fault]) -> None:
    assert faults(find_node_faults(configure(**settings), (), MACHINE)) == found
    assert faults(find_node_faults(configure(**settings), (), replace(MACHINE, has_keys=True))) == []

"""Prepared faults, each a real server that is wrong in one thing: doctor names that one and no other, and its cure."""

import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tokenizers import Tokenizer

from deploy.launch import Launched
from deploy.stacks import MODEL, WEIGHTS
from gateway.doctor import Fault, Options, Report, Topic, render_text
from gateway.engine_kinds.vllm.parity import TEXTS
from tests.doctor.conftest import Clinic
from tests.doctor.wrong import Change, Edit, WrongTriton, WrongVLLM
from tests.engines.wires.servers import serving
from tests.evidence.pages_server import PagesServer
from tests.evidence.serving import becomes
from tests.fakes.wire import Wire

Message = Any  # tritonclient publishes no types

CACHE = (
    b'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="%b",engine="0",'
    b'gpu_memory_utilization="0.9",num_gpu_blocks="661"} 1.0\n'
)
ONE_PROCESS = b'python_info{implementation="CPython",major="3",minor="12",version="3.12.3"} 1.0\n'


def expect(report: Report, *faults: Fault) -> None:
    """These and no others; and a reader is told what to do about each."""
    assert [finding.fault for finding in report.findings] == list(faults), render_text(report, is_verbose=True)
    text = render_text(report, is_verbose=False)
    for fault in faults:
        assert f"{fault.severity}: {fault.code}: " in text
        assert f"\n  cure: {fault.cure}" in text


def set_decoupled(config: Message) -> None:
    config.model_transaction_policy.decoupled = False


def leave_placeholder(config: Message) -> None:
    config.parameters["cuda_graph_mode"].string_value = "${cuda_graph_mode}"


def retype_seed(config: Message) -> None:
    (seed,) = [tensor for tensor in config.input if tensor.name == "seed"]
    seed.data_type = 2  # TYPE_UINT8


def turn_features_off(config: Message) -> None:
    """As a model of TensorRT-LLM's C++ Triton backend whose configuration leaves everything off but batching."""
    config.backend = "tensorrtllm"
    for name, value in TENSORRT_LLM.items():
        config.parameters[name].string_value = value


TENSORRT_LLM = {
    "gpt_model_type": "inflight_fused_batching", "cuda_graph_mode": "false", "enable_chunked_context": "false",
    "enable_kv_cache_reuse": "false", "max_tokens_in_paged_kv_cache": "100000",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (set_decoupled, (Fault.NOT_DECOUPLED,)),
        (leave_placeholder, (Fault.PLACEHOLDER_LEFT,)),
        (retype_seed, (Fault.TENSORS_DIFFER,)),
        (turn_features_off, (Fault.CUDA_GRAPHS_OFF, Fault.CHUNKED_PREFILL_OFF, Fault.PREFIX_CACHING_OFF)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_a_triton_model_that_is_configured_wrongly(
    clinic: Clinic, change: Change, faults: tuple[Fault, ...]
) -> None:
    async with WrongTriton(clinic.triton, change).serving() as url:
        expect(await clinic.examine({"triton": {"url": url}}), *faults)


async def test_a_triton_that_answers_one_request_after_the_other(clinic: Clinic) -> None:
    async with WrongTriton(clinic.triton, takes_turns=True).serving() as url:
        report = await clinic.examine(options=Options(), models=clinic.only("triton", url=url))
    expect(report, Fault.IN_FLIGHT_BATCHING_OFF)
    assert "a later, short one ended after a long one" in report.findings[0].seen


async def test_a_vllm_without_the_token_route(clinic: Clinic) -> None:
    with serving("engines.reference.vllm_http", "--port", "0", "--no-scale-out") as server:
        expect(await clinic.examine({"vllm": {"url": server.addresses[0]}}), Fault.TOKEN_ROUTE_OFF)


async def test_a_vllm_with_another_tokenizer(clinic: Clinic, tmp_path: Path) -> None:
    """Two tokens have each other's ids."""
    weights = shutil.copytree(WEIGHTS, tmp_path / "weights")
    document = json.loads((weights / "tokenizer.json").read_text())
    one, other, *_ = Tokenizer.from_file(str(weights / "tokenizer.json")).encode(TEXTS[0]).tokens
    vocabulary = document["model"]["vocab"]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (weights / "tokenizer.json").write_text(json.dumps(document))
    with serving("engines.reference.vllm_http", "--port", "0", "--model-dir", str(weights)) as server:
        report = await clinic.examine({"vllm": {"url": server.addresses[0]}})
    expect(report, Fault.PROMPT_MISMATCH)
    assert re.search(r"at 0 it is \d+ here and \d+ there", report.findings[0].seen)


async def test_a_vllm_with_a_shorter_context_than_the_gateway_promises(clinic: Clinic, tmp_path: Path) -> None:
    weights = shutil.copytree(WEIGHTS, tmp_path / "weights")
    config = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    with serving("engines.reference.vllm_http", "--port", "0", "--model-dir", str(weights)) as server:
        report = await clinic.examine({"vllm": {"url": server.addresses[0]}})
    expect(report, Fault.CONTEXT_BEYOND_ENGINE)
    assert "the gateway takes 1024 tokens, the engine 512" in report.findings[0].seen


def leave_no_counts(page: bytes) -> bytes:
    """As with several API processes before the first request: the names are there, the samples are not."""
    return b"".join(line for line in page.splitlines(keepends=True) if not line.startswith(b"vllm:num_requests"))


@pytest.mark.parametrize(
    ("edit", "faults"),
    [
        (lambda page: page + CACHE % b"False" + ONE_PROCESS, (Fault.PREFIX_CACHING_OFF, Fault.ONE_API_PROCESS)),
        (lambda page: page + CACHE % b"True", ()),  # of several processes
        (leave_no_counts, ()),
    ],
)
async def test_what_a_vllms_metrics_page_tells(clinic: Clinic, edit: Edit, faults: tuple[Fault, ...]) -> None:
    async with WrongVLLM(clinic.vllm, edits={"/metrics": edit}).serving() as url:
        expect(await clinic.examine({"vllm": {"url": url}}), *faults)


async def test_a_vllm_on_a_gpu_that_was_told_to_be_eager(clinic: Clinic) -> None:
    info = {
        "vllm_config": {
            "model_config": {"enforce_eager": True, "quantization": None},
            "scheduler_config": {"max_num_seqs": 1024, "enable_chunked_prefill": True},
            "compilation_config": {"cudagraph_mode": 0},
            "device_config": {"device": "cuda"},
        }
    }
    async with WrongVLLM(clinic.vllm, pages={"/server_info": json.dumps(info).encode()}).serving() as url:
        expect(await clinic.examine({"vllm": {"url": url}}), Fault.CUDA_GRAPHS_OFF)
        required = {"vllm": frozenset({Topic.FP8, Topic.CHUNKED_PREFILL})}
        report = await clinic.examine({"vllm": {"url": url}}, Options(required=required, generates=False))
    expect(report, Fault.CUDA_GRAPHS_OFF, Fault.CREDITED_NOT_SHOWN)


async def test_a_vllm_whose_development_routes_others_reach(clinic: Clinic) -> None:
    info = json.dumps({"vllm_config": {}}).encode()
    async with WrongVLLM(clinic.vllm, pages={"/server_info": info}).serving() as url:
        expect(await clinic.examine({"vllm": {"url": url}}))
        expect(await clinic.examine({"vllm": {"url": url.replace("127.0.0.1", "0.0.0.0")}}), Fault.DEV_MODE_OPEN)


async def test_a_vllm_that_returns_no_ids(clinic: Clinic) -> None:
    """As releases do that do not know return_token_ids."""
    edits = {"/inference/v1/generate": lambda stream: stream.replace(b'"token_ids"', b'"text"')}
    async with WrongVLLM(clinic.vllm, edits=edits).serving() as url:
        expect(await clinic.examine(options=Options(), models=clinic.only("vllm", url=url)), Fault.CANNOT_GENERATE)


@asynccontextmanager
async def tritons_metrics_port() -> AsyncIterator[PagesServer]:
    async with PagesServer({"/metrics": (200, b'nv_inference_request_success{model="m"} 1\n')}).serving() as server:
        yield server


async def test_a_triton_url_that_is_the_metrics_port(clinic: Clinic) -> None:
    address = clinic.metrics.removeprefix("http://").removesuffix("/metrics")
    report = await clinic.examine({"triton": {"url": f"grpc://{address}"}})
    expect(report, Fault.WRONG_WIRE, Fault.PORTS_CLASH)
    assert "is Triton's metrics port" in report.findings[0].seen


async def test_an_engine_at_a_socket_is_examined_through_it(clinic: Clinic, tmp_path: Path) -> None:
    wire = Wire(urlsplit(clinic.vllm).port or 0, tmp_path / "engine.sock")
    async with wire.laid():
        expect(await clinic.examine({"vllm": {"url": wire.url}}, Options()))
    report = await clinic.examine({"vllm": {"url": wire.url}})
    expect(report, Fault.UNREACHABLE)
    assert str(tmp_path / "engine.sock") in report.findings[0].seen


async def test_a_vllm_url_that_is_tritons_grpc_port(clinic: Clinic) -> None:
    async with WrongTriton(clinic.triton).serving() as url:
        report = await clinic.examine({"vllm": {"url": url.replace("grpc://", "http://")}})
    expect(report, Fault.WRONG_WIRE)


@pytest.mark.parametrize(
    ("version", "fault"), [((404, b""), Fault.WRONG_WIRE), ((200, b'{"version": "1"}'), Fault.NOT_READY)]
)
async def test_a_vllm_url_that_answers_without_health(clinic: Clinic, version: tuple[int, bytes], fault: Fault) -> None:
    async with PagesServer({"/version": version}).serving() as server:
        expect(await clinic.examine({"vllm": {"url": server.url}}), fault)


async def test_a_metrics_page_without_the_engines_count(clinic: Clinic) -> None:
    async with tritons_metrics_port() as server:
        expect(await clinic.examine({"triton": {"metrics_url": f"{server.url}/metrics"}}), Fault.METRICS_SILENT)


async def test_an_engine_that_accepts_connections_and_does_not_answer(clinic: Clinic) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel does, and nobody else
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        expect(await clinic.examine({"vllm": {"url": f"http://{address}"}}), Fault.NOT_READY)
        expect(await clinic.examine({"triton": {"url": f"grpc://{address}"}}), Fault.NOT_READY)


async def test_an_address_where_no_connection_comes_about(clinic: Clinic) -> None:
    """As behind a firewall that drops packets: a queue of connections that nobody accepts is full."""
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        report = await clinic.examine({"vllm": {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}})
    expect(report, Fault.UNREACHABLE)


async def test_a_model_that_triton_does_not_have(clinic: Clinic) -> None:
    expect(await clinic.examine({"triton": {"model": "ensemble"}}), Fault.NOT_READY)


async def test_a_port_that_something_else_has(clinic: Clinic) -> None:
    async with tritons_metrics_port() as server:
        report = await clinic.examine(listen=f"127.0.0.1:{server.port}")
    expect(report, Fault.LISTEN_TAKEN)


def is_known(stack: Launched) -> bool:
    """Whether the gateway has asked who its vLLM is."""
    engines = httpx.get(f"{stack.url}/version").json()["models"][MODEL]
    return engines["vllm"]["version"] is not None


async def test_a_running_gateway_whose_policy_was_measured_on_other_engines(
    clinic: Clinic, embedded_stack: Launched
) -> None:
    async with httpx.AsyncClient(base_url=embedded_stack.url) as gateway:
        policy = (await gateway.get("/admin/policy")).json()
        await becomes(lambda: is_known(embedded_stack), True)
        try:
            stale = {**policy, "fingerprint": {"vllm": {"version": "0.1"}}}
            assert (await gateway.put("/admin/policy", json=stale)).is_success
            report = await clinic.examine()
        finally:
            await gateway.put("/admin/policy", json={**policy, "version": None})
    expect(report, Fault.POLICY_STALE)
    assert report.findings[0].seen == "vllm version was 0.1, is 0.32.0+reference"


async def test_a_triton_that_keeps_its_configuration_to_itself(clinic: Clinic) -> None:
    """As one started with --grpc-restricted-protocol=model-config:key=value."""
    async with WrongTriton(clinic.triton, restricts_config=True).serving() as url:
        expect(await clinic.examine({"triton": {"url": url}}), Fault.CONFIG_HIDDEN)


async def test_a_tokenizer_that_does_not_load(clinic: Clinic, tmp_path: Path) -> None:
    document = clinic.configuration()
    document["models"][0]["tokenizer"] = str(tmp_path)
    expect(await clinic.examine(models=document["models"]), Fault.TOKENIZER_UNUSABLE)


async def test_a_triton_without_a_metrics_page(clinic: Clinic) -> None:
    expect(await clinic.examine({"triton": {"metrics_url": None}}), Fault.METRICS_MISSING)


def relayed(server: PagesServer, metrics: str | None = None, **keys: object) -> list[dict[str, object]]:
    """A model with one backend, of kind relay; `metrics`: path of its page."""
    url = {} if metrics is None else {"metrics_url": f"{server.url}{metrics}"}
    return [{"id": "m", "backends": {"sglang": {"kind": "relay", "url": server.url, **url, **keys}}}]


@pytest.mark.parametrize(
    ("pages", "keys", "faults"),
    [
        ({"/health": (200, b"")}, {}, ()),
        ({"/health": (503, b"")}, {}, (Fault.NOT_READY,)),
        ({"/health": (200, b"")}, {"metrics": "/metrics"}, (Fault.METRICS_SILENT,)),
        ({"/ok": (200, b"")}, {"health_path": "/ok"}, ()),
    ],
)
async def test_a_server_of_another_make(
    clinic: Clinic, pages: dict[str, tuple[int, bytes]], keys: dict[str, str], faults: tuple[Fault, ...]
) -> None:
    async with PagesServer(pages).serving() as server:
        expect(await clinic.examine(models=relayed(server, **keys)), *faults)


async def test_a_relay_that_is_not_there(clinic: Clinic) -> None:
    async with PagesServer().serving() as server:
        gone = relayed(server)
    expect(await clinic.examine(models=gone), Fault.UNREACHABLE)


async def test_a_relay_address_that_speaks_grpc(clinic: Clinic) -> None:
    async with WrongTriton(clinic.triton).serving() as url:
        models = [{"id": "m", "backends": {"sglang": {"kind": "relay", "url": url.replace("grpc", "http")}}}]
        expect(await clinic.examine(models=models), Fault.WRONG_WIRE)

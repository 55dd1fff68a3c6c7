"""What each kind of engine reports, read from the reference engine's own servers and from servers that misbehave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.engine_kinds import ENGINE_KINDS
from gateway.evidence import Engine, Identity, NoAnswer, open_engines
from gateway.evidence.http import MAX_PAGE_BYTES, TIMEOUT_S
from gateway.settings import BackendSettings, ModelSettings, RelaySettings, TritonSettings, VLLMSettings
from tests.engines.wires.servers import free_ports, serving
from tests.evidence.pages_server import PagesServer

CARD = b'{"object":"list","data":[{"id":"m","root":"/weights","max_model_len":1024},{"id":"adapter"}]}'
CACHE = (
    b'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",'
    b'gpu_memory_utilization="0.9",num_gpu_blocks="661"} 1.0\n'
)
COUNTS = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\n'


def model(*backends: BackendSettings, name: str = "m") -> ModelSettings:
    return ModelSettings(name, Path(), {backend.name: backend for backend in backends})


@asynccontextmanager
async def one_engine(backend: BackendSettings) -> AsyncIterator[Engine]:
    async with open_engines([model(backend)], ENGINE_KINDS) as engines:
        (engine,) = engines
        yield engine


@pytest.fixture
async def pages() -> AsyncIterator[PagesServer]:
    async with PagesServer().serving() as server:
        yield server


async def test_vllm_reports_its_count_and_what_a_redeployment_would_change(pages: PagesServer) -> None:
    pages.pages = {
        "/metrics": (200, COUNTS + CACHE),
        "/version": (200, b'{"version":"0.24.0"}'),
        "/v1/models": (200, CARD),
    }
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        page = await engine.reader.read_metrics()
        assert page is not None
        assert engine.reader.count(page) == 5
        assert await engine.reader.identify(page) == {
            "engine": "vllm",
            "version": "0.24.0",
            "model": "m",
            "root": "/weights",
            "max_model_len": 1024,
            "cache_dtype": "fp8",
            "block_size": "16",
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": "0.9",
        }


SPECULATION = b"".join(
    b'vllm:spec_decode_num_%s_total{engine="0"} %d.0\n' % (name, count)
    for name, count in ((b"drafts", 100), (b"draft_tokens", 300), (b"accepted_tokens", 150))
)


@pytest.mark.parametrize(
    ("page", "size"),
    [
        (COUNTS, {}),
        (CACHE, {"replicas": 1, "kv_tokens": 661 * 16}),
        (CACHE + CACHE.replace(b'engine="0"', b'engine="1"'), {"replicas": 2, "kv_tokens": 661 * 16}),
        (CACHE.replace(b'"661"', b'"None"'), {"replicas": 1}),
        (SPECULATION, {"tokens_per_step": 2.5, "verified": 4}),
        (SPECULATION.replace(b" 100.0", b" 0.0"), {}),
    ],
)
async def test_vllm_reports_how_much_it_holds(pages: PagesServer, page: bytes, size: dict[str, float]) -> None:
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        assert engine.reader.read_size(page) == size


async def test_tensorrt_llm_reports_its_slots_and_blocks() -> None:
    page = (
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m",version="1"} 100.0\n'
        b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64.0\n'
        b'nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 32.0\n'
    )
    async with one_engine(TritonSettings("triton", "grpc://127.0.0.1:9", model="m")) as engine:
        assert engine.reader.read_size(page) == {"kv_tokens": 6400, "max_sequences": 32}
        assert engine.reader.read_size(COUNTS) == {}


async def test_an_engine_at_a_socket_reports_as_much(tmp_path: Path) -> None:
    async with PagesServer(socket=tmp_path / "engine.sock").serving() as server:
        server.pages = {"/metrics": (200, COUNTS), "/version": (200, b'{"version":"0.24.0"}')}
        async with one_engine(VLLMSettings("vllm", server.url)) as engine:
            page = await engine.reader.read_metrics()
            assert page is not None
            assert engine.reader.count(page) == 5
            assert await engine.reader.identify(page) == {"engine": "vllm", "version": "0.24.0"}
        assert server.asked == ["/metrics", "/version", "/v1/models"]
    async with one_engine(VLLMSettings("vllm", server.url)) as engine:
        with pytest.raises(NoAnswer, match=r"engine\.sock"):
            await engine.reader.read_metrics()


async def test_a_relay_reports_what_it_has_under_vllms_names(pages: PagesServer) -> None:
    pages.pages = {"/prometheus": (200, COUNTS), "/v1/models": (200, CARD)}
    relay = RelaySettings("sglang", pages.url, metrics_url=f"{pages.url}/prometheus", api_key="open-sesame")
    async with one_engine(relay) as engine:
        page = await engine.reader.read_metrics()
        assert page is not None
        assert engine.reader.count(page) == 5
        assert await engine.reader.identify(page) == {"model": "m", "root": "/weights", "max_model_len": 1024}
    assert set(pages.keys) == {"Bearer open-sesame"}
    pages.keys.clear()
    async with one_engine(VLLMSettings("vllm", pages.url, api_key="vllms-key")) as engine:
        await engine.reader.identify(await engine.reader.read_metrics())
    assert set(pages.keys) == {"Bearer vllms-key"}
    async with one_engine(RelaySettings("sglang", pages.url)) as engine:
        assert await engine.reader.read_metrics() is None


async def test_a_metrics_page_may_be_at_a_socket_of_its_own(pages: PagesServer, tmp_path: Path) -> None:
    async with PagesServer(socket=tmp_path / "metrics.sock").serving() as server:
        server.pages = {"/prometheus": (200, COUNTS)}
        relay = RelaySettings("sglang", pages.url, metrics_url=f"{server.url}/prometheus")
        async with one_engine(relay) as engine:
            page = await engine.reader.read_metrics()
            assert page is not None
            assert engine.reader.count(page) == 5
        assert server.asked == ["/prometheus"]


@pytest.mark.parametrize(
    ("version", "models"),
    [
        ((404, b""), (404, b"")),
        ((401, b'{"version":"no"}'), (401, CARD)),
        ((200, b"not JSON"), (200, b'["a list"]')),
        ((200, b'{"version":[7]}'), (200, b'{"data":[]}')),
        ((200, b"{}"), (200, b'{"data":["m"]}')),
        ((302, b""), (200, b'{"data":[{"id":null,"root":["x"]}]}')),
    ],
)
async def test_what_vllm_does_not_report_is_left_out(
    pages: PagesServer, version: tuple[int, bytes], models: tuple[int, bytes]
) -> None:
    pages.pages = {"/version": version, "/v1/models": models}
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        assert await engine.reader.read_metrics() is None
        assert await engine.reader.identify(None) == {"engine": "vllm"}


async def test_cache_settings_are_kept_while_the_metrics_page_is_missing(pages: PagesServer) -> None:
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        known = await engine.reader.identify(CACHE)
        assert known["cache_dtype"] == "fp8"
        assert await engine.reader.identify(None) == known


@pytest.mark.parametrize("page", [COUNTS.splitlines()[0], COUNTS.splitlines()[1], b"", CACHE])
async def test_half_of_vllms_count_is_unknown(pages: PagesServer, page: bytes) -> None:
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        assert engine.reader.count(page) is None


@pytest.mark.parametrize("body", [b"x" * (MAX_PAGE_BYTES + 1), b""], ids=["endless", "failing"])
async def test_an_engine_that_fails_or_sends_without_end_gives_no_answer(pages: PagesServer, body: bytes) -> None:
    pages.pages = {"/metrics": (200 if body else 500, body)}
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine:
        with pytest.raises(NoAnswer):
            await engine.reader.read_metrics()


async def test_an_engine_that_never_answers_is_given_up_in_time(pages: PagesServer) -> None:
    pages.is_open.clear()
    async with one_engine(VLLMSettings("vllm", pages.url)) as engine, asyncio.timeout(4 * TIMEOUT_S):
        with pytest.raises(NoAnswer):
            await engine.reader.read_metrics()


@pytest.mark.parametrize("kind", ["triton", "vllm"])
async def test_a_dead_engine_gives_no_answer(kind: str) -> None:
    (port,) = free_ports(1)
    metrics_url = f"http://127.0.0.1:{port}/metrics"
    backend: BackendSettings = VLLMSettings("vllm", f"http://127.0.0.1:{port}")
    if kind == "triton":
        backend = TritonSettings("triton", f"grpc://127.0.0.1:{port}", metrics_url=metrics_url)
    async with one_engine(backend) as engine:
        with pytest.raises(NoAnswer):
            await engine.reader.read_metrics()
        with pytest.raises(NoAnswer):
            await engine.reader.identify(None)


async def test_the_reference_engine_behind_vllms_wire_reports_all_it_has() -> None:
    with serving("engines.reference.vllm_http", "--port", "0") as server:
        async with one_engine(VLLMSettings("vllm", server.addresses[0])) as engine:
            page = await engine.reader.read_metrics()
            assert page is not None
            assert engine.reader.count(page) == 0
            known = await engine.reader.identify(page)
    assert (known["engine"], known["model"]) == ("vllm", "crossover-mini")
    assert {"version", "root", "max_model_len"} <= set(known)


async def test_the_reference_engine_behind_tritons_wire_reports_all_it_has() -> None:
    with serving("engines.reference.kserve", "--grpc-port", "0", "--metrics-port", "0") as server:
        grpc, metrics = server.addresses
        async with one_engine(TritonSettings("triton", grpc, metrics_url=metrics)) as engine:
            page = await engine.reader.read_metrics()
            assert page is not None
            assert engine.reader.count(page) == 0
            known = await engine.reader.identify(page)
            assert known == await engine.reader.identify(page)
        async with one_engine(TritonSettings("triton", grpc, model="other", metrics_url=metrics)) as engine:
            assert engine.reader.count(page) is None
            with pytest.raises(NoAnswer):  # the server is there, the model is not
                await engine.reader.identify(page)
        async with one_engine(TritonSettings("triton", grpc)) as engine:
            assert await engine.reader.read_metrics() is None
    assert (known["engine"], known["model"], known["model_versions"]) == ("triton", "tensorrt_llm", "1")
    assert {"version", "platform", "max_batch_size", "config"} <= set(known)


async def test_a_triton_that_was_away_is_read_again() -> None:
    grpc, metrics = free_ports(2)
    ports = ("--grpc-port", grpc, "--metrics-port", metrics)
    async with one_engine(TritonSettings("triton", f"grpc://127.0.0.1:{grpc}")) as engine:
        with serving("engines.reference.kserve", *ports):
            known = await engine.reader.identify(None)
        for _ in range(6):  # long enough for gRPC to put off its next attempt to connect
            with pytest.raises(NoAnswer):
                await engine.reader.identify(None)
            await asyncio.sleep(0.5)
        with serving("engines.reference.kserve", *ports):
            again: Identity | None = None
            for _ in range(200):
                if again := await try_to_identify(engine):
                    break
                await asyncio.sleep(0.1)
    assert again == known


async def try_to_identify(engine: Engine) -> Identity | None:
    try:
        return await engine.reader.identify(None)
    except NoAnswer:
        return None


async def test_one_server_behind_several_models_is_one_engine() -> None:
    shared = VLLMSettings("vllm", "http://127.0.0.1:9")
    again = VLLMSettings("other-name", "http://127.0.0.1:9")
    other = VLLMSettings("vllm", "http://127.0.0.1:10")
    models = [model(shared, name="a"), model(again, name="b"), model(other, name="c")]
    async with open_engines(models, ENGINE_KINDS) as engines:
        assert [str(engine) for engine in engines] == ["vllm (a), also other-name (b)", "vllm (c)"]

"""The Compose files: their schema, their settings, and the order and shares by which two engines fit one node.

No Docker engine has run any of it.
"""

import json
import re
from pathlib import Path

import pytest

from gateway.settings import TritonSettings, VLLMSettings
from tests.deploy.shipped import COMPOSE, Document, check_schema, find_option, load_shipped, merge, read_compose

VARIABLE = re.compile(r"\$\{([A-Z_]+)")
PINNED = re.compile(r"^[a-z0-9./-]+:\$\{(\w+)_TAG:-[\w.-]+\}\$\{(\w+)_DIGEST:\+@\$\{(\w+)_DIGEST\}\}$")
SPECIFICATION = ("--builtin-schema", "vendor.compose-spec")


@pytest.fixture(scope="module")
def partition() -> Document:
    return read_compose(COMPOSE / "compose.yaml")


@pytest.fixture(scope="module")
def shared(partition: Document) -> Document:
    merged: Document = merge(partition, read_compose(COMPOSE / "shared.yaml"))
    return merged


@pytest.mark.parametrize("layout", ["partition", "shared"])
def test_each_layout_is_what_the_compose_specification_allows(
    layout: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / "compose.json"
    path.write_text(json.dumps(request.getfixturevalue(layout)))
    assert check_schema(path, *SPECIFICATION) == ""


def test_every_setting_is_explained_and_every_explanation_is_of_a_setting() -> None:
    used = {name for path in COMPOSE.glob("*.yaml") for name in VARIABLE.findall(path.read_text())}
    explained = set(re.findall(r"^#?([A-Z_]+)=", (COMPOSE / "env.example").read_text(), re.MULTILINE))
    assert used == explained


def test_defaults_in_the_example_are_those_in_force() -> None:
    in_force = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", (COMPOSE / "compose.yaml").read_text()))
    written = dict(re.findall(r"^#([A-Z_]+)=(.*)$", (COMPOSE / "env.example").read_text(), re.MULTILINE))
    alike = {name: value for name, value in written.items() if name in in_force and not name.endswith("_DIGEST")}
    assert alike == {name: in_force[name] for name in alike}
    assert len(alike) >= 12


def test_images_are_pinned_by_tag_and_can_be_by_digest(partition: Document) -> None:
    images = {name: service["image"] for name, service in partition["services"].items()}
    assert images.pop("gateway").startswith("crossover-gateway:")  # built here
    for image in images.values():
        match = PINNED.match(image)
        assert match is not None, image
        assert len(set(match.groups())) == 1, image


def list_gpus(service: Document) -> list[str]:
    [devices] = service["deploy"]["resources"]["reservations"]["devices"]
    gpus: list[str] = devices["device_ids"]
    return gpus


def test_engines_have_two_gpus_each_and_none_in_common(partition: Document) -> None:
    services = partition["services"]
    assert sorted([*list_gpus(services["triton"]), *list_gpus(services["vllm"])]) == ["0", "1", "2", "3"]


def test_engines_that_share_gpus_start_one_after_the_other_with_caches_of_fixed_size(shared: Document) -> None:
    triton, vllm = shared["services"]["triton"], shared["services"]["vllm"]
    assert list_gpus(triton) == list_gpus(vllm) == ["0", "1", "2", "3"]
    assert vllm["depends_on"] == {"triton": {"condition": "service_healthy"}}
    assert find_option(vllm["command"], "--kv-cache-memory-bytes").startswith("${VLLM_KV_CACHE_BYTES:?")
    # Held against what is free at the start, of which Triton has had its share.
    assert find_option(vllm["command"], "--gpu-memory-utilization") == "${VLLM_GPU_MEMORY_UTILIZATION:-0.45}"


def test_the_gateway_waits_for_no_engine_and_is_stopped_before_both(partition: Document) -> None:
    assert partition["services"]["gateway"]["depends_on"] == {
        "triton": {"condition": "service_started"},
        "vllm": {"condition": "service_started"},
    }


def test_nothing_but_the_gateway_and_grafana_is_reached_from_outside(partition: Document) -> None:
    services = partition["services"]
    assert {name for name, service in services.items() if "ports" in service} == {"gateway", "grafana"}
    assert partition["networks"]["engines"]["internal"] is True
    assert [services[engine]["networks"] for engine in ("triton", "vllm")] == [["engines"], ["engines"]]


def test_configuration_names_the_services_and_their_ports(partition: Document, tmp_path: Path) -> None:
    settings = load_shipped(COMPOSE / "crossover.yaml", tmp_path)
    triton, vllm = (settings.models[0].backends[name] for name in ("triton", "vllm"))
    assert isinstance(triton, TritonSettings)
    assert isinstance(vllm, VLLMSettings)
    assert (triton.url, triton.metrics_url) == ("grpc://triton:8001", "http://triton:8002/metrics")
    assert vllm.url == f"http://vllm:{find_option(partition['services']['vllm']['command'], '--port')}"
    assert settings.listen_port == 8080

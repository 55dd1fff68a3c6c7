"""Alerts, dashboard and autoscaler: their PromQL is parsed, and every metric and label in it is one that is exposed.

The gateway's and vLLM's are scraped from those that run; what only TensorRT-LLM and GPUs have is listed here, after
its documentation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.launch import Launched
from tests.deploy.shipped import COMPOSE, DEPLOY, KUBERNETES, find_option, need_tool, read_compose, run_tool

RULES = DEPLOY / "prometheus/rules.yml"
DASHBOARD = DEPLOY / "grafana/dashboards/crossover.json"
# Prometheus' own for every target.
SCRAPE = {"up": {"job", "instance"}}
TARGET_LABELS = {"job", "instance"}
# Of a policy with a node model alone, once it has seen an engine work: Curve.readings.
BY_NODE_MODEL: Mapping[str, set[str] | None] = {"crossover_policy_model_wrong": {"model", "backend"}}
# triton-inference-server/server docs/user_guide/metrics.md; TensorRT-LLM's Triton backend, custom_metrics_reporter.cc.
ON_GPUS_ALONE: Mapping[str, set[str] | None] = {
    "nv_gpu_utilization": {"gpu_uuid"},
    "nv_gpu_memory_used_bytes": {"gpu_uuid"},
    "nv_gpu_memory_total_bytes": {"gpu_uuid"},
    "nv_trt_llm_request_metrics": {"model", "version", "request_type"},
    "nv_trt_llm_general_metrics": {"model", "version", "general_type"},
    "nv_trt_llm_kv_cache_block_metrics": {"model", "version", "kv_cache_block_type"},
    "nv_trt_llm_inflight_batcher_metrics": {"model", "version", "inflight_batcher_specific_metric"},
}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of ours and where it stands."""

    place: str
    text: str

    @property
    def selectors(self) -> Iterator[promql_parser.VectorSelector]:
        found: list[promql_parser.VectorSelector] = []
        promql_parser.walk(promql_parser.parse(self.text), lambda node: _keep(node, found))
        return iter(found)


def _keep(node: object, found: list[promql_parser.VectorSelector]) -> bool:
    if isinstance(node, promql_parser.VectorSelector):
        found.append(node)
    return True


def read_rules() -> list[Query]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [Query(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def read_dashboard() -> list[Query]:
    """With Grafana's variables as they might be filled in."""
    document = json.loads(DASHBOARD.read_text())
    panels = [(panel["title"], target["expr"]) for panel in document["panels"] for target in panel.get("targets", ())]
    notes = [(note["name"], note["expr"]) for note in document["annotations"]["list"]]
    return [Query(title, expr.replace("$__rate_interval", "1m")) for title, expr in (*panels, *notes)]


def read_autoscaler() -> list[Query]:
    scaler = yaml.safe_load((KUBERNETES / "components/keda/autoscaler.yaml").read_text())
    return [Query(trigger["name"], trigger["metadata"]["query"]) for trigger in scaler["spec"]["triggers"]]


QUERIES = [*read_rules(), *read_dashboard(), *read_autoscaler()]


def list_metrics(queries: Iterable[Query]) -> dict[str, set[str]]:
    """Metric to the labels by which it is chosen."""
    found: dict[str, set[str]] = {}
    for query in queries:
        for selector in query.selectors:
            assert selector.name is not None, query.text
            found.setdefault(selector.name, set()).update(matcher.name for matcher in selector.matchers.matchers)
    return found


def list_grouping_labels(queries: Iterable[Query]) -> set[str]:
    grouped = (re.findall(r"\b(?:by|on) \(([^)]*)\)", query.text) for query in queries)
    return {label.strip() for found in grouped for labels in found for label in labels.split(",")}


def read_page(page: str) -> dict[str, set[str] | None]:
    """Sample name to label names; None where there is no sample yet, and so no label to be seen."""
    exposed: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(page):
        if not family.samples:
            exposed[f"{family.name}_total" if family.type == "counter" else family.name] = None
        for sample in family.samples:
            exposed[sample.name] = (exposed.get(sample.name) or set()) | set(sample.labels)
    return exposed


def list_strangers(
    prefix: str, exposed: Mapping[str, set[str] | None], queries: Iterable[Query] = QUERIES
) -> list[str]:
    """Of our queries' metrics that begin with `prefix`, those that nobody exposes, and labels that they lack."""
    strangers = []
    for name, labels in list_metrics(queries).items():
        if not name.startswith(prefix):
            continue
        if name not in exposed:
            strangers.append(name)
        elif (known := exposed[name]) is not None:
            strangers.extend(f"{name}{{{label}}}" for label in sorted(labels - TARGET_LABELS - known))
    return strangers


async def scrape_after_traffic(url: str) -> str:
    """The gateway's page when an answer, a run's answer and a refusal have been counted."""
    async with httpx.AsyncClient(base_url=url) as client:
        [model] = [entry["id"] for entry in (await client.get("/v1/models")).json()["data"]]
        body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "ignore_eos": True}
        for headers in ({}, {"x-crossover-run": "watching"}):
            (await client.post("/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        assert (await client.post("/v1/chat/completions", json={**body, "model": "nobody"})).status_code == 404
        return (await client.get("/metrics")).text


async def test_every_metric_of_the_gateway_that_is_asked_for_is_one_it_exposes(embedded_stack: Launched) -> None:
    exposed = read_page(await scrape_after_traffic(embedded_stack.url))
    assert list_strangers("crossover_", {**BY_NODE_MODEL, **exposed}) == []
    assert list_strangers("process_", exposed) == []


def test_every_metric_of_vllm_that_is_asked_for_is_one_the_real_server_exposes(cpu_stack: Launched) -> None:
    page = httpx.get(f"{read_backend_url(cpu_stack, 'vllm')}/metrics").text
    assert list_strangers("vllm:", read_page(page)) == []


def read_backend_url(stack: Launched, name: str) -> str:
    configuration = yaml.safe_load((stack.run_dir / "crossover.yaml").read_text())
    url: str = configuration["models"][0]["backends"][name]["url"]
    return url


def test_metrics_of_tensorrt_llm_and_gpus_are_those_of_their_documentation() -> None:
    assert list_strangers("nv_", ON_GPUS_ALONE) == []


def test_nothing_else_is_asked_for() -> None:
    known = ("crossover_", "process_", "vllm:", "nv_")
    assert {name for name in list_metrics(QUERIES) if not name.startswith(known)} <= set(SCRAPE)


def test_every_label_that_is_summed_by_is_somebodys() -> None:
    labels = {"backend", "code", "instance", "le", "model", "model_name", "outcome", "version"}
    assert list_grouping_labels(QUERIES) <= labels


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.place}: {query.text}")
def test_every_expression_is_promql(query: Query) -> None:
    assert list(query.selectors) != []


def test_every_alert_has_a_severity_a_summary_and_an_action() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    assert {rule["labels"]["severity"] for rule in rules} == {"critical", "warning"}
    assert all(set(rule["annotations"]) == {"summary", "action"} for rule in rules)
    assert len({rule["alert"] for rule in rules}) == len(rules)


def test_every_alert_has_a_test_of_its_own_in_which_it_fires() -> None:
    tests = yaml.safe_load(RULES.with_name("rules.test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fired == {query.place for query in read_rules()}


def test_alerts_fire_when_their_tests_expect_it_and_not_else() -> None:
    promtool = need_tool("promtool", "prometheus")
    done = run_tool(promtool, "test", "rules", RULES.with_name("rules.test.yml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    promtool = need_tool("promtool", "prometheus")
    path = tmp_path / "prometheus.yml"
    path.write_text((DEPLOY / "prometheus/prometheus.yml").read_text().replace("/etc/prometheus/rules.yml", str(RULES)))
    done = run_tool(promtool, "check", "config", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_scrapes_services_that_compose_runs_on_the_ports_they_have() -> None:
    services = read_compose(COMPOSE / "compose.yaml")["services"]
    jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"][0] for job in jobs}
    assert targets == {
        "crossover-gateway": "gateway:8080",
        "triton": "triton:8002",
        "vllm": f"vllm:{find_option(services['vllm']['command'], '--port')}",
        "prometheus": "localhost:9090",
    }
    assert {host.partition(":")[0] for name, host in targets.items() if name != "prometheus"} <= set(services)


def test_the_dashboard_is_one_that_grafana_is_configured_with() -> None:
    folder = DEPLOY / "grafana/provisioning"
    [source] = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    [provider] = yaml.safe_load((folder / "dashboards/crossover.yml").read_text())["providers"]
    service = read_compose(COMPOSE / "compose.yaml")["services"]["grafana"]
    mounted = dict(volume.split(":")[:2] for volume in service["volumes"] if volume.startswith(".."))
    assert mounted == {
        "../grafana/provisioning": "/etc/grafana/provisioning",
        "../grafana/dashboards": "/etc/grafana/dashboards",
    }
    assert provider["options"]["path"] == mounted["../grafana/dashboards"]
    assert source["url"] == "http://prometheus:9090"
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{DASHBOARD.name}"


def test_every_variable_of_the_dashboard_is_declared_and_every_panel_has_its_own_id() -> None:
    document = json.loads(DASHBOARD.read_text())
    declared = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(document["panels"]))) - {"__rate_interval"}
    assert used == declared
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])

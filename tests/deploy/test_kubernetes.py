"""The manifests as `kubectl apply -k` would send them: each overlay rendered, each resource held against its schema.

Schemas are those of Kubernetes 1.37 (kubernetes-validate) and, for custom resources, ours. No cluster has seen them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.access import KeyFile, Keyring, Scope
from gateway.access.key_file import NAME
from gateway.settings import TritonSettings, VLLMSettings
from tests.deploy.shipped import (
    DEPLOY,
    KUBERNETES,
    OVERLAYS,
    Document,
    find_kinds,
    find_node,
    find_option,
    list_containers,
    load_shipped,
    need_tool,
    read_env,
    render,
    render_overlay,
    run_tool,
)

RELEASE = "1.37"
SCHEMAS = Path(__file__).parent / "schemas"
COMPONENTS = tuple(sorted(path.parent.name for path in (KUBERNETES / "components").glob("*/kustomization.yaml")))
SHIPPED_BY_THE_OPERATOR = {"crossover-operator"}  # a Secret: docs/deployment.md shows how it is made


def find_problems(document: Document) -> list[str]:
    """The violations of a resource's schema: Kubernetes' own, else ours. Fails for a kind without a schema."""
    try:
        kubernetes_validate.validate(document, RELEASE, strict=True)
    except kubernetes_validate.ValidationError as exc:
        return [f"{document['kind']}: {exc.message}"]
    except kubernetes_validate.SchemaNotFoundError:
        path = SCHEMAS / f"{document['kind']}.json"
        assert path.exists(), f"nothing here knows what a {document['kind']} of {document['apiVersion']} may hold"
        return [error.message for error in Draft202012Validator(json.loads(path.read_text())).iter_errors(document)]
    return []


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> tuple[Document, ...]:
    return render_overlay(request.param)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Several nodes behind HAProxy with every component: the components are rendered as an operator would add them."""
    folder = tmp_path_factory.mktemp("everything")
    relative = partial(os.path.relpath, start=folder)
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": "crossover",
            "resources": [relative(KUBERNETES / "overlays/fleet-haproxy")],
            "components": [relative(KUBERNETES / "components" / name) for name in COMPONENTS],
        })
    )
    return render(folder)


def test_every_resource_of_every_overlay_is_what_its_schema_allows(overlay: tuple[Document, ...]) -> None:
    assert [problem for document in overlay for problem in find_problems(document)] == []


def test_every_component_is_what_its_schema_allows(everything: list[Document]) -> None:
    assert {"ScaledObject", "PodMonitor"} <= {document["kind"] for document in everything}
    assert [problem for document in everything for problem in find_problems(document)] == []


def test_keys_of_a_secret_are_where_the_gateway_reads_them(everything: list[Document], tmp_path: Path) -> None:
    node = find_node(tuple(everything))
    link = node["spec"]["initContainers"][0]
    *_, target, path = link["command"]
    assert Path(path) == Path(yaml.safe_load((KUBERNETES / "base/crossover.yaml").read_text())["state_folder"]) / NAME
    [gateway] = node["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in gateway["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in node["spec"]["volumes"]}
    secret = volumes[mounts[str(Path(target).parent)]]["secret"]
    assert (secret["secretName"], Path(target).name) == ("crossover-keys", NAME)
    assert mounts[str(Path(path).parent)] == link["volumeMounts"][0]["name"]
    assert link["image"] == gateway["image"]

    # The kubelet changes a Secret by another folder behind a link.
    own = KeyFile(tmp_path / "own")
    for name in ("alice", "bob"):
        own.create(name, (Scope.INFERENCE,), None)
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_bytes((tmp_path / "own" / NAME).read_bytes())
    (tmp_path / "data").symlink_to("alice")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).symlink_to(tmp_path / "data" / NAME)
    ring = Keyring(None, KeyFile(tmp_path / "state"))
    (tmp_path / "next").symlink_to("bob")
    (tmp_path / "next").rename(tmp_path / "data")
    ring.look()
    assert [key.name for key in ring.keys] == ["alice", "bob"]


def list_templates(documents: tuple[Document, ...]) -> list[Document]:
    return [document["spec"]["template"] for document in find_kinds(documents, "Deployment")]


def list_selectors(documents: tuple[Document, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for document in documents:
        spec = document.get("spec", {})
        name = f"{document['kind']} {document['metadata']['name']}"
        match document["kind"]:
            case "Service":
                yield name, spec["selector"]
            case "PodDisruptionBudget" | "InferencePool":
                yield name, spec["selector"]["matchLabels"]
            case "NetworkPolicy":
                yield name, spec["podSelector"]["matchLabels"]


def test_every_selector_finds_pods(overlay: tuple[Document, ...]) -> None:
    labels = [template["metadata"]["labels"].items() for template in list_templates(overlay)]
    selectors = list(list_selectors(overlay))
    assert len(selectors) >= 4
    assert [name for name, wanted in selectors if not any(wanted.items() <= found for found in labels)] == []


def test_every_port_that_is_named_is_a_containers(overlay: tuple[Document, ...]) -> None:
    for template in list_templates(overlay):
        containers = list_containers(template).values()
        ports = {port["name"]: port["containerPort"] for container in containers for port in container["ports"]}
        labels = template["metadata"]["labels"].items()
        for document in (*find_kinds(overlay, "Service"), *find_kinds(overlay, "NetworkPolicy")):
            spec = document["spec"]
            if document["kind"] == "Service" and spec["selector"].items() <= labels:
                assert {port["targetPort"] for port in spec["ports"]} <= set(ports), document
            elif document["kind"] == "NetworkPolicy" and spec["podSelector"]["matchLabels"].items() <= labels:
                assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} <= set(ports), document


def test_every_map_and_secret_that_a_pod_reads_is_there(overlay: tuple[Document, ...]) -> None:
    maps = {document["metadata"]["name"] for document in find_kinds(overlay, "ConfigMap")}
    claims = {document["metadata"]["name"] for document in find_kinds(overlay, "PersistentVolumeClaim")}
    for template in list_templates(overlay):
        for volume in template["spec"]["volumes"]:
            assert volume.get("configMap", {}).get("name") in {None, *maps}
            assert volume.get("persistentVolumeClaim", {}).get("claimName") in {None, *claims}
        for container in list_containers(template).values():
            for variable in container.get("env", ()):
                secret = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name")
                assert secret in {None, *SHIPPED_BY_THE_OPERATOR}


def test_a_node_is_four_gpus_however_they_are_given() -> None:
    for name in OVERLAYS:
        node = find_node(render_overlay(name))
        engines = [list_containers(node)[engine]["resources"] for engine in ("triton", "vllm")]
        if name == "shared":
            [template] = find_kinds(render_overlay(name), "ResourceClaimTemplate")
            [claim] = node["spec"]["resourceClaims"]
            assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
            assert [engine["claims"] for engine in engines] == [[{"name": claim["name"]}]] * 2
            assert all("nvidia.com/gpu" not in engine["limits"] for engine in engines)
            assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 4
        else:
            assert [engine["limits"]["nvidia.com/gpu"] for engine in engines] == ["2", "2"]


def test_engines_are_ready_before_the_gateway_starts_and_end_after_it(overlay: tuple[Document, ...]) -> None:
    """Sidecars start in their order, each when the one before has passed its startupProbe, and are ended in reverse."""
    node = find_node(overlay)
    engines = node["spec"]["initContainers"]
    assert [engine["name"] for engine in engines] == ["triton", "vllm"]
    assert all(engine["restartPolicy"] == "Always" and "startupProbe" in engine for engine in engines)
    # An engine that is down must not take the node out of its Services: the gateway goes on with the other.
    assert all("readinessProbe" not in engine for engine in engines)
    [gateway] = node["spec"]["containers"]
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/health"


def test_a_node_takes_no_gpus_for_a_rollout_and_loses_one_node_at_a_time(overlay: tuple[Document, ...]) -> None:
    [node] = [entry for entry in find_kinds(overlay, "Deployment") if entry["metadata"]["name"] == "crossover-node"]
    assert node["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    budgets = {entry["metadata"]["name"]: entry["spec"] for entry in find_kinds(overlay, "PodDisruptionBudget")}
    assert budgets["crossover-node"]["maxUnavailable"] == 1


def test_pods_of_ours_run_with_no_more_rights_than_they_need(overlay: tuple[Document, ...]) -> None:
    for template in list_templates(overlay):
        for name, container in list_containers(template).items():
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            if name not in {"triton", "vllm"}:  # whose images run as root
                assert {**template["spec"]["securityContext"], **context}["runAsNonRoot"] is True
                assert context["readOnlyRootFilesystem"] is True


def test_engines_are_reached_by_nobody_but_their_neighbour_and_who_measures(overlay: tuple[Document, ...]) -> None:
    [policy] = [
        entry for entry in find_kinds(overlay, "NetworkPolicy") if entry["metadata"]["name"] == "crossover-node"
    ]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"].get("egress", []) == []
    ports = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert ports <= {"http", "triton-metrics", "vllm"}
    for rule in policy["spec"]["ingress"]:
        if {port["port"] for port in rule["ports"]} != {"http"}:
            assert "crossover/client" not in json.dumps(rule)


@pytest.mark.parametrize(("overlay_name", "ranks"), [("two-plus-two", 2), ("shared", 4)])
def test_triton_is_started_as_everywhere_else(overlay_name: str, ranks: int) -> None:
    documents = render_overlay(overlay_name)
    node = find_node(documents)
    triton = list_containers(node)["triton"]
    [script] = triton["command"]
    [mount] = [entry for entry in triton["volumeMounts"] if entry["mountPath"] == str(Path(script).parent)]
    [volume] = [entry["configMap"] for entry in node["spec"]["volumes"] if entry["name"] == mount["name"]]
    assert volume["defaultMode"] == 0o555
    [config] = [entry for entry in find_kinds(documents, "ConfigMap") if entry["metadata"]["name"] == volume["name"]]
    assert config["data"] == {"triton.sh": (DEPLOY / "triton.sh").read_text()}
    assert read_env(triton) == {
        "TRITON_RANKS": str(ranks),
        "TRITON_MODEL_REPOSITORY": "/srv/crossover/model_repo",
        "TRITON_EXIT_TIMEOUT_S": "30",
    }


def test_configuration_names_the_neighbours_and_their_ports(tmp_path: Path) -> None:
    settings = load_shipped(KUBERNETES / "base/crossover.yaml", tmp_path)
    containers = list_containers(find_node(render_overlay("two-plus-two")))
    triton, vllm = (settings.models[0].backends[name] for name in ("triton", "vllm"))
    assert isinstance(triton, TritonSettings)
    assert isinstance(vllm, VLLMSettings)
    ports = {port["name"]: port["containerPort"] for port in containers["triton"]["ports"]}
    assert triton.url == f"grpc://127.0.0.1:{ports['triton-grpc']}"
    assert triton.metrics_url == f"http://127.0.0.1:{ports['triton-metrics']}/metrics"
    assert vllm.url == f"http://127.0.0.1:{find_option(containers['vllm']['args'], '--port')}"
    assert find_option(containers["vllm"]["args"], "--served-model-name") == settings.models[0].id


def test_the_picker_is_configured_by_what_its_schema_allows() -> None:
    folder = KUBERNETES / "overlays/fleet-inference-extension"
    document = yaml.safe_load((folder / "picker-config.yaml").read_text())
    assert find_problems(document) == []
    plugins = {plugin["type"] for plugin in document["plugins"]}
    assert plugins == {entry["pluginRef"] for entry in document["schedulingProfiles"][0]["plugins"]}


def test_references_between_resources_are_to_what_exists() -> None:
    documents = render_overlay("fleet-inference-extension")
    services = {document["metadata"]["name"]: document["spec"] for document in find_kinds(documents, "Service")}
    [pool] = find_kinds(documents, "InferencePool")
    [route] = find_kinds(documents, "HTTPRoute")
    [gateway] = find_kinds(documents, "Gateway")
    picker = pool["spec"]["endpointPickerRef"]
    assert picker["port"]["number"] in {port["port"] for port in services[picker["name"]]["ports"]}
    assert pool["spec"]["targetPorts"] == [
        {"number": list_containers(find_node(documents))["gateway"]["ports"][0]["containerPort"]}
    ]
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
    assert [entry["name"] for entry in route["spec"]["rules"][0]["backendRefs"]] == [pool["metadata"]["name"]]


def test_the_autoscaler_alone_sets_how_many_nodes_there_are(everything: list[Document]) -> None:
    [scaler] = find_kinds(everything, "ScaledObject")
    target = scaler["spec"]["scaleTargetRef"]
    [node] = [entry for entry in find_kinds(everything, target["kind"]) if entry["metadata"]["name"] == target["name"]]
    assert "replicas" not in node["spec"]


def test_every_port_that_prometheus_reads_is_a_nodes(everything: list[Document]) -> None:
    [monitor] = find_kinds(everything, "PodMonitor")
    ports = {
        port["name"]
        for container in list_containers(find_node(everything)).values()
        for port in container.get("ports", ())
    }
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    assert {endpoint["port"] for endpoint in endpoints} <= ports
    assert {entry["relabelings"][0]["replacement"] for entry in endpoints} == {"crossover-gateway", "triton", "vllm"}


def test_the_balancers_configuration_is_one_that_haproxy_takes() -> None:
    haproxy = need_tool("haproxy", "haproxy")
    done = run_tool(haproxy, "-c", "-f", KUBERNETES / "overlays/fleet-haproxy/haproxy.cfg")
    assert done.returncode == 0, done.stderr

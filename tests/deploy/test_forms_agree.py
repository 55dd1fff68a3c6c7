"""Compose, Kubernetes and systemd start the same servers: same images, same options, drains that fit their graces."""

import re
import shlex

import yaml

from tests.deploy.shipped import (
    COMPOSE,
    DEPLOY,
    KUBERNETES,
    UNITS,
    Document,
    Unit,
    find_node,
    find_option,
    list_containers,
    read_compose,
    read_env,
    read_variables,
    render_overlay,
)

FORCED_RANKS_S = 7  # deploy/triton.sh: beyond Triton's own time, for ranks that hang and for mpirun to kill them
FORCED_END_S = 2  # gateway/commands/options.py: beyond the drain, for streams that were failed at its end
WITH_DEFAULTS = (
    *("--api-server-count", "--kv-cache-dtype", "--max-model-len"),
    *("--max-num-seqs", "--quantization", "--tensor-parallel-size"),
)


def compose(name: str) -> Document:
    service: Document = read_compose(COMPOSE / "compose.yaml")["services"][name]
    return service


def pod(name: str) -> Document:
    container: Document = list_containers(find_node(render_overlay("two-plus-two")))[name]
    return container


def exec_start(name: str) -> list[str]:
    return shlex.split(Unit(UNITS / f"crossover-{name}.service")["Service"]["ExecStart"])


def list_flags(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_vllm_has_the_same_options_everywhere() -> None:
    in_compose, in_pod = list_flags(compose("vllm")["command"]), list_flags(pod("vllm")["args"])
    under_systemd = list_flags([*exec_start("vllm"), *read_variables(UNITS / "node.env")["VLLM_MEMORY"].split()])
    assert in_compose == in_pod == under_systemd
    assert "--enable-scale-out" in in_compose


def test_defaults_of_vllm_are_the_same_everywhere() -> None:
    variables = read_variables(UNITS / "node.env")
    for option in WITH_DEFAULTS:
        default = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", find_option(compose("vllm")["command"], option))
        assert find_option(pod("vllm")["args"], option) == default
        variable = find_option(exec_start("vllm"), option).strip("${}")
        assert variables[variable] == default


def test_images_are_the_same_everywhere() -> None:
    def tag(image: str) -> str:
        return re.sub(r"\$\{\w+_TAG:-([\w.-]+)\}.*", r"\1", image)

    kustomization = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())
    in_pods = {f"{entry['name']}:{entry['newTag']}" for entry in kustomization["images"]}
    in_compose = {tag(compose(name)["image"]) for name in ("triton", "vllm", "gateway")}
    assert in_compose == in_pods
    for path in (UNITS / "node.env", UNITS / "shared/node.env"):
        assert read_variables(path)["TRITON_IMAGE"] in in_pods
    script = (DEPLOY / "node.sh").read_text()
    assert {
        f"nvcr.io/nvidia/tritonserver:{name}" for name in re.findall(r"^triton_tag=(\S+)", script, re.MULTILINE)
    } <= in_pods
    assert set(re.findall(r"vllm/vllm-openai:\$\{VLLM_TAG:-(\S+)\}", script)) == {kustomization["images"][2]["newTag"]}


def test_the_release_is_that_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert compose("gateway")["image"] == f"crossover-gateway:${{CROSSOVER_TAG:-{version[1]}}}"


def seconds(text: str) -> int:
    unit = {"s": 1, "min": 60, "m": 60}
    match = re.fullmatch(r"(\d+)(s|min|m)?", text)
    assert match is not None, text
    return int(match[1]) * unit[match[2] or "s"]


def read_drain(words: list[str]) -> int:
    return int(words[words.index("--drain-timeout-s") + 1])


def test_a_gateway_is_not_killed_while_it_drains() -> None:
    unit, service = compose("gateway"), Unit(UNITS / "crossover-gateway.service")["Service"]
    assert seconds(unit["stop_grace_period"]) > read_drain(unit["command"]) + FORCED_END_S
    assert seconds(service["TimeoutStopSec"]) > read_drain(exec_start("gateway")) + FORCED_END_S


def test_no_engine_is_killed_while_it_ends() -> None:
    exit_s = int(compose("triton")["environment"]["TRITON_EXIT_TIMEOUT_S"])
    assert seconds(compose("triton")["stop_grace_period"]) > exit_s + FORCED_RANKS_S
    assert seconds(compose("vllm")["stop_grace_period"]) > int(
        find_option(compose("vllm")["command"], "--shutdown-timeout")
    )
    triton, vllm = (Unit(UNITS / f"crossover-{name}.service")["Service"] for name in ("triton", "vllm"))
    stop_s = int(triton["ExecStop"].split("--time ")[1].split()[0])
    [exit_s] = [
        int(word.partition("=")[2]) for word in exec_start("triton") if word.startswith("TRITON_EXIT_TIMEOUT_S=")
    ]
    assert seconds(triton["TimeoutStopSec"]) > stop_s > exit_s + FORCED_RANKS_S
    assert seconds(vllm["TimeoutStopSec"]) > int(find_option(exec_start("vllm"), "--shutdown-timeout"))


def test_a_pods_grace_is_longer_than_all_that_happens_in_it() -> None:
    """The hook and the drain of the gateway, then the engines, which are ended when the gateway is gone."""
    spec = find_node(render_overlay("two-plus-two"))["spec"]
    hook_s = pod("gateway")["lifecycle"]["preStop"]["sleep"]["seconds"]
    engines_s = int(read_env(pod("triton"))["TRITON_EXIT_TIMEOUT_S"]) + FORCED_RANKS_S
    assert (
        spec["terminationGracePeriodSeconds"] > hook_s + read_drain(pod("gateway")["args"]) + FORCED_END_S + engines_s
    )


def test_compose_under_systemd_is_given_the_time_its_containers_may_take() -> None:
    service = Unit(UNITS / "crossover-compose.service")["Service"]
    stop_s = seconds(compose("gateway")["stop_grace_period"]) + seconds(compose("triton")["stop_grace_period"])
    assert seconds(service["TimeoutStopSec"]) > stop_s
    wait_s = int(service["ExecStart"].split("--wait-timeout ")[1])
    assert seconds(service["TimeoutStartSec"]) > wait_s > seconds(compose("triton")["healthcheck"]["start_period"])

"""The operator's routes, asked over a real socket."""

import logging
import os
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

import httpx
import pytest

from gateway import __version__
from gateway.core import Need
from gateway.routing.policies import KEYS, POLICIES, Threshold
from tests.fakes.operated import POLICY, Operated

Json: TypeAlias = Any  # whatever the server answered

READY: dict[str, object] = {
    "ready": True,
    "ejected": False,
    "draining": False,
    **dict.fromkeys(("engine_in_flight", "drift", "steady_drift", "evidence_age_s")),
    "readings": {},
    "cached": None,
    "size": {},
}
BODY = {"kind": "threshold", "low": "triton", "high": "vllm", "up": 56, "down": 44, "dwell_s": 2.0}


@pytest.fixture(scope="module")
def shared() -> Iterator[Operated]:
    """For tests that leave no trace but a higher policy version."""
    with Operated().serving() as gateway:
        yield gateway


def ask(gateway: Operated, method: str, path: str, **content: Any) -> httpx.Response:  # Any: httpx's own keywords
    return httpx.request(method, gateway.url + path, timeout=20, **content)


def put(gateway: Operated, body: Json, **content: Any) -> httpx.Response:  # Any: httpx's own keywords
    return ask(gateway, "PUT", "/admin/policy", json=body, **content)


def error(response: httpx.Response) -> Json:
    return response.json()["error"]


# ---- status ----------------------------------------------------------------------------------------------------------


def test_health_and_version_answer_whatever_the_engines_do(shared: Operated) -> None:
    assert ask(shared, "GET", "/health").json() == {"status": "ok"}
    unknown = {"engine": None, "version": None}
    version = {"version": __version__, "is_compiled": False, "models": {"llama": {"triton": unknown, "vllm": unknown}}}
    assert ask(shared, "GET", "/version").json() == version


def test_metrics_are_in_prometheus_text_format(shared: Operated) -> None:
    response = ask(shared, "GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'crossover_backend_ready{backend="triton",model="llama"} 1.0' in response.text


def test_ready_needs_one_backend_of_every_model_and_names_those_without() -> None:
    gateway = Operated(models={"llama": POLICY, "qwen": None})
    gateway.backends["llama"]["triton"].ready = False
    gateway.backends["qwen"]["vllm"].ready = False
    with gateway.serving():
        response = ask(gateway, "GET", "/ready")
        assert response.status_code == 503
        assert response.json() == {
            "status": "not ready",
            "not_ready": ["qwen"],
            "models": {"llama": {"triton": False, "vllm": True}, "qwen": {"vllm": False}},
        }
    gateway.backends["qwen"]["vllm"].ready = True
    with gateway.serving():
        response = ask(gateway, "GET", "/ready")
        assert (response.status_code, response.json()["status"]) == (200, "ready")


# ---- policy ----------------------------------------------------------------------------------------------------------


def test_the_policy_in_force_reads_as_in_the_configuration() -> None:
    with Operated().serving() as gateway:
        assert ask(gateway, "GET", "/admin/policy").json() == {
            **dict.fromkeys(KEYS),  # those of other kinds too, null
            "model": "llama",
            "kind": "threshold",
            "low": "triton",
            "high": "vllm",
            "up": 48,
            "down": 40,
            "dwell_s": 1.0,
            "moves": False,
            "calibration": None,
            "fingerprint": None,
            "by": "configuration",
            "version": 1,
            "stale": [],
        }


def test_a_policys_fingerprint_is_kept_with_it_and_goes_with_the_next() -> None:
    fingerprint = {"vllm": {"engine": "vllm", "version": "0.24.0", "max_model_len": 8192}}
    with Operated().serving() as gateway:
        assert put(gateway, {**BODY, "fingerprint": fingerprint}).json()["fingerprint"] == fingerprint
        sent_back = ask(gateway, "GET", "/admin/policy").json()
        assert put(gateway, {**sent_back, "up": 57}).json()["fingerprint"] == fingerprint
        assert put(gateway, BODY).json()["fingerprint"] is None
        (model,) = ask(gateway, "GET", "/admin/state").json()["models"]
        assert [entry["fingerprint"] for entry in model["history"]] == [None, fingerprint, fingerprint, None]


@pytest.mark.parametrize(
    ("fingerprint", "message"),
    [
        ({"sglang": {"version": "1"}}, "fingerprint: model llama has no backend sglang"),
        ({"vllm": {"version": "1" * 2048}}, "fingerprint: is longer than 2048 bytes"),
        ({"vllm": "0.24.0"}, "fingerprint.vllm: Input should be a valid dictionary"),
        (["vllm"], "fingerprint: Input should be a valid dictionary"),
    ],
)
def test_a_fingerprint_that_is_none_is_refused(shared: Operated, fingerprint: Json, message: str) -> None:
    response = put(shared, {**BODY, "fingerprint": fingerprint})
    assert (response.status_code, error(response)["message"]) == (400, message)


def test_a_new_policy_is_in_force_once_it_is_answered() -> None:
    with Operated().serving() as gateway:
        response = put(gateway, {**BODY, "up": 1, "down": 0, "calibration": "run-7", "by": "alice"})
        assert response.status_code == 200
        assert (response.json()["version"], response.json()["up"], response.json()["by"]) == (2, 1, "alice")
        with gateway.router.find("llama").lease(gateway.request()) as lease:
            assert lease.route.backend == "vllm"
        history = ask(gateway, "GET", "/admin/state").json()["models"][0]["history"]
        assert [(entry["version"], entry["by"], entry["calibration"]) for entry in history] == [
            (1, "configuration", None),
            (2, "alice", "run-7"),
        ]


def test_a_change_without_a_name_is_the_callers_address(shared: Operated) -> None:
    assert put(shared, BODY).json()["by"] == "127.0.0.1"


def test_the_answer_of_get_may_be_sent_back_changed(shared: Operated) -> None:
    current = ask(shared, "GET", "/admin/policy").json()
    response = put(shared, {**current, "up": 99})
    assert response.status_code == 200
    assert response.json() == {**current, "up": 99, "version": current["version"] + 1}


def test_a_change_of_a_policy_no_longer_in_force_is_a_conflict(shared: Operated) -> None:
    stale = ask(shared, "GET", "/admin/policy").json()
    in_force = put(shared, BODY).json()
    response = put(shared, {**stale, "up": 99})
    assert response.status_code == 409
    assert error(response)["code"] == "policy_changed"
    assert ask(shared, "GET", "/admin/policy").json() == in_force


@pytest.mark.parametrize(
    ("edits", "param"),
    [
        ({"up": 0}, "up"),
        ({"up": "56"}, "up"),
        ({"up": 1.5}, "up"),
        ({"down": 56}, "down"),
        ({"down": -1}, "down"),
        ({"dwell_s": -1}, "dwell_s"),
        ({"low": "trt"}, "low"),
        ({"high": "triton"}, "high"),
        ({"kind": "magic"}, "kind"),
        ({"kind": "share"}, "up"),
        ({"kind": "share", "up": None, "down": None, "dwell_s": None}, "share"),
        ({"kind": "share", "up": None, "down": None, "dwell_s": None, "share": 1.5}, "share"),
        ({"share": 0.5}, "share"),
        ({"down": None}, "down"),
        ({"upp": 3}, "upp"),
        ({"by": "alice\nbackend triton is down"}, "by"),
        ({"model": "gpt"}, "model"),
    ],
)
def test_a_bad_field_is_named_and_nothing_changes(shared: Operated, edits: Json, param: str) -> None:
    before = ask(shared, "GET", "/admin/policy").json()
    response = put(shared, {**BODY, **edits})
    assert response.status_code == (404 if param == "model" else 400)
    assert error(response)["param"] == param
    assert error(response)["type"] == "invalid_request_error"
    assert ask(shared, "GET", "/admin/policy").json() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "the body is not valid JSON"),
        (b"[]", "Input should be"),
        (b"", "required"),
    ],
)
def test_a_body_that_is_no_policy_is_refused(shared: Operated, content: bytes, message: str) -> None:
    headers = {"content-type": "application/json"}
    response = ask(shared, "PUT", "/admin/policy", content=content, headers=headers)
    assert response.status_code == 400
    assert error(response)["param"] is None
    assert message in error(response)["message"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_beyond_the_bound_is_refused(shared: Operated, is_chunked: bool) -> None:
    body = b'{"kind": "' + b"x" * 70_000 + b'"}'
    response = ask(shared, "PUT", "/admin/policy", content=iter([body]) if is_chunked else body)
    assert (response.status_code, error(response)["code"]) == (413, "request_too_large")


def test_with_several_models_one_must_be_named() -> None:
    with Operated(models={"llama": POLICY, "qwen": POLICY}).serving() as gateway:
        for response in (ask(gateway, "GET", "/admin/policy"), put(gateway, BODY)):
            assert (response.status_code, error(response)["param"]) == (400, "model")
        assert put(gateway, {**BODY, "model": "qwen"}).json()["model"] == "qwen"
        assert ask(gateway, "GET", "/admin/policy", params={"model": "llama"}).json()["up"] == 48
        assert ask(gateway, "GET", "/admin/policy", params={"model": "qwen"}).json()["up"] == 56


def test_a_model_with_one_backend_shows_so_and_takes_no_policy() -> None:
    with Operated(models={"llama": None}).serving() as gateway:
        assert ask(gateway, "GET", "/admin/policy").json()["kind"] == "single"
        response = put(gateway, BODY)
        assert (response.status_code, error(response)["param"]) == (400, "model")


# ---- state -----------------------------------------------------------------------------------------------------------


def test_state_tells_what_is_in_flight_and_what_steers() -> None:
    policy = Threshold(low="triton", high="vllm", up=2, down=1, dwell_s=0)
    with Operated(models={"llama": policy}).serving() as gateway:
        gateway.backends["llama"]["triton"].capabilities = frozenset({Need.LOGIT_BIAS, Need.GUIDE})
        gateway.backends["llama"]["vllm"].capabilities = frozenset()
        lease = gateway.router.find("llama").lease
        measured = gateway.request(pin="vllm", run="calibration-1")
        with lease(measured), lease(measured), lease(gateway.request()):
            (model,) = ask(gateway, "GET", "/admin/state").json()["models"]
        assert model["backends"] == {
            "triton": {**READY, "in_flight": 1, "steering": 1, "capabilities": ["guided_decoding", "logit_bias"]},
            "vllm": {**READY, "in_flight": 2, "steering": 0, "capabilities": []},
        }
        assert (model["in_flight"], model["steering"], model["side"], model["switches"]) == (3, 1, "triton", 0)
        assert model["dry"] is None
        assert model["policy"] == {key: model["history"][-1].get(key, []) for key in model["policy"]}


def test_state_shows_the_policy_on_trial() -> None:
    dry = Threshold(low="triton", high="vllm", up=1, down=0)
    with Operated(dry=dry).serving() as gateway:
        gateway.router.find("llama").lease(gateway.request()).close()
        (model,) = ask(gateway, "GET", "/admin/state").json()["models"]
    shown = model["dry"]
    assert {key: shown[key] for key in ("kind", "up", "down", "side", "split", "switches")} == {
        "kind": "threshold",
        "up": 1,
        "down": 0,
        "side": "vllm",
        "split": False,
        "switches": 1,
    }
    assert shown["choices"] == {"triton": {"triton": 0, "vllm": 1}, "vllm": {"triton": 0, "vllm": 0}}
    assert model["side"] == "triton"


def test_state_names_the_workers_and_who_answered(shared: Operated) -> None:
    with shared.router.find("llama").lease(shared.request()):
        state = ask(shared, "GET", "/admin/state").json()
    assert state["answered_by"] == 0
    assert (state["generation"], state["restart"]) == (1, None)
    (worker,) = state["workers"]
    assert (worker["index"], worker["pid"], worker["in_flight"]) == (0, os.getpid(), 1)


def test_state_describes_the_keys_of_every_kind_of_policy(shared: Operated) -> None:
    policies = ask(shared, "GET", "/admin/state").json()["policies"]
    assert policies.keys() == POLICIES.keys()
    keys = policies["threshold"]["properties"]
    assert [*keys] == ["low", "high", "up", "down", "dwell_s", "moves"]
    assert (keys["up"]["type"], keys["up"]["minimum"], keys["up"]["maximum"]) == ("integer", 1, 1_000_000)
    assert keys["dwell_s"]["default"] == 1.0
    assert all(schema["description"] for policy in policies.values() for schema in policy["properties"].values())


# ---- backends --------------------------------------------------------------------------------------------------------


def test_a_backend_that_drains_gets_pinned_requests_only() -> None:
    with Operated().serving() as gateway:
        path = "/admin/backends/triton"
        model = ask(gateway, "PUT", path, json={"draining": True}).json()
        assert [view["draining"] for view in model["backends"].values()] == [True, False]
        with (
            gateway.router.find("llama").lease(gateway.request()) as placed,
            gateway.router.find("llama").lease(gateway.request(pin="triton")) as pinned,
        ):
            assert (placed.route.backend, pinned.route.backend) == ("vllm", "triton")
        ask(gateway, "PUT", path, json={"draining": False})
        assert gateway.router.find("llama").lease(gateway.request()).route.backend == "triton"


def test_the_last_backend_in_use_is_drained_by_force_only() -> None:
    with Operated().serving() as gateway:
        paths = ("/admin/backends/triton", "/admin/backends/vllm")
        assert ask(gateway, "PUT", paths[0], json={"draining": True}).status_code == 200
        refused = ask(gateway, "PUT", paths[1], json={"draining": True})
        assert (refused.status_code, error(refused)["code"]) == (409, "last_backend")
        assert '"force": true' in error(refused)["message"]
        assert gateway.router.find("llama").lease(gateway.request()).route.backend == "vllm"
        assert ask(gateway, "PUT", paths[1], json={"draining": True, "force": True}).status_code == 200
        assert ask(gateway, "PUT", paths[1], json={"draining": False}).status_code == 200


@pytest.mark.parametrize(
    ("backend", "body", "param"),
    [
        ("sglang", {"draining": True}, "backend"),
        ("vllm", {"draining": "yes"}, "draining"),
        ("vllm", {}, "draining"),
        ("vllm", {"draining": True, "model": "qwen"}, "model"),
    ],
)
def test_a_backend_or_a_wish_that_is_none_is_named(shared: Operated, backend: str, body: Json, param: str) -> None:
    refused = ask(shared, "PUT", f"/admin/backends/{backend}", json=body)
    assert (refused.status_code in {400, 404}, error(refused)["param"]) == (True, param)


# ---- the operator key ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authorization", [None, "Bearer wrong-key", "Bearer", "Basic open-sesame", "open-sesame"])
def test_with_an_operator_key_admin_routes_ask_for_it(authorization: str | None) -> None:
    headers = {"authorization": authorization} if authorization else {}
    with Operated(key="open-sesame").serving() as gateway:
        for response in (
            ask(gateway, "GET", "/admin/state", headers=headers),
            ask(gateway, "GET", "/admin/policy", headers=headers),
            put(gateway, BODY, headers=headers),
            ask(gateway, "PUT", "/admin/backends/vllm", json={"draining": True}, headers=headers),
        ):
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert error(response)["code"] == "invalid_api_key"
        assert gateway.router.model_state().current.version == 1
        assert ask(gateway, "GET", "/health").status_code == 200


def test_refused_attempts_are_audited_by_their_number_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway.audit"), Operated(key="open-sesame").serving() as gateway:
        began = time.monotonic()
        for _ in range(20):
            ask(gateway, "GET", "/admin/state", headers={"authorization": "Bearer wrong-key"})
        while sum(map(count_refused, caplog.messages)) < 20:
            assert time.monotonic() < began + 30
            time.sleep(0.05)
        ask(gateway, "GET", "/admin/state", headers={"authorization": "Bearer open-sesame"})
    last = "the last one GET '/admin/state' from 127.0.0.1 (invalid_api_key)"
    assert caplog.messages[0] == f"1 operator requests refused, {last}"
    assert 2 <= len(caplog.messages) <= 1 + (time.monotonic() - began)
    assert "wrong-key" not in caplog.text


def count_refused(message: str) -> int:
    return int(message.split(maxsplit=1)[0])


def test_with_the_key_they_answer() -> None:
    headers = {"authorization": "Bearer open-sesame"}
    with Operated(key="open-sesame").serving() as gateway:
        assert put(gateway, BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/admin/nothing", 404), ("DELETE", "/admin/policy", 405)]
)
def test_unknown_routes_answer_in_the_same_shape(shared: Operated, method: str, path: str, status: int) -> None:
    response = ask(shared, method, path)
    assert response.status_code == status
    assert set(error(response)) == {"message", "type", "param", "code"}

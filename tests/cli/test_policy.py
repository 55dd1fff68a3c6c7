"""`crossover policy` against a real gateway's admin routes."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.routing.policies import Share, Threshold
from tests.fakes.operated import POLICY, Operated


@pytest.fixture
def gateway() -> Iterator[Operated]:
    with Operated().serving() as operated:
        yield operated


def policy(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["policy", *arguments], env=environ)


def test_show_prints_thresholds_sides_and_load(gateway: Operated) -> None:
    with gateway.router.find("llama").lease(gateway.request()):
        result = policy("show", "--url", gateway.url)
    assert result.exit_code == 0
    assert (
        "llama: threshold low=triton high=vllm up=48 down=40 dwell_s=1.0 moves=False (version 1, by configuration)"
        in result.output
    )
    assert "on triton for" in result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert ["triton", "low", "yes", "1", "1", "?", "?"] in rows  # nobody asks the engines of this gateway
    assert ["vllm", "high", "yes", "0", "0", "?", "?"] in rows


def test_show_prints_on_how_many_requests_the_policy_on_trial_agrees() -> None:
    with Operated(dry=Share(low="triton", high="vllm", share=0.0)).serving() as gateway:
        before = policy("show", "--url", gateway.url).output
        with gateway.router.find("llama").lease(gateway.request()):
            after = policy("show", "--url", gateway.url).output
    assert "dry share low=triton high=vllm share=0.0: on vllm for " in before
    assert "0 switches, no request so far" in before
    assert "0 switches, agrees on 0.0% of 1 requests" in after


def test_show_json_is_the_gateways_state(gateway: Operated) -> None:
    result = policy("show", "--url", f"{gateway.url}/v1/", "--json")
    (model,) = json.loads(result.output)["models"]
    assert (model["model"], model["policy"]["up"]) == ("llama", 48)


def test_set_changes_what_it_names_and_keeps_the_rest(gateway: Operated) -> None:
    result = policy("set", "--url", gateway.url, "--up", "56", "--down", "44", "--calibration", "run-7")
    assert result.exit_code == 0
    assert result.output.startswith(
        "llama: threshold low=triton high=vllm up=56 down=44 dwell_s=1.0 moves=False calibration=run-7 (version 2, by "
    )
    current = gateway.router.model_state().current
    assert isinstance(current.policy, Threshold)
    assert (current.policy.low, current.policy.up, current.policy.down) == ("triton", 56, 44)
    assert current.by != "127.0.0.1"  # whoever ran the command, not the address it came from


def test_set_goes_to_a_share_and_back_to_thresholds(gateway: Operated) -> None:
    result = policy("set", "--url", gateway.url, "--kind", "share", "--share", "0.05")
    assert result.output.startswith("llama: share low=triton high=vllm share=0.05 (version 2, by ")
    assert gateway.router.model_state().current.policy == Share("triton", "vllm", 0.05)
    result = policy("set", "--url", gateway.url, "--share", "0.25")
    assert gateway.router.model_state().current.policy == Share("triton", "vllm", 0.25)
    assert "share=0.25" in policy("show", "--url", gateway.url).output
    result = policy("set", "--url", gateway.url, "--kind", "threshold")
    assert (result.exit_code, result.output) == (1, "Error: up: required\n")
    result = policy("set", "--url", gateway.url, "--kind", "threshold", "--up", "50", "--down", "30")
    assert result.exit_code == 0
    assert gateway.router.model_state().current.policy == Threshold("triton", "vllm", 50, 30)


def test_a_node_model_comes_from_a_file_and_only_json_shows_it_whole(gateway: Operated, tmp_path: Path) -> None:
    engine = {"steps_ms": [[1, 5.0]], "prompt_ms": 20.0, "attention_ms": 0.5, "max_sequences": 64, "kv_tokens": 90_000}
    node = {"low": engine, "high": engine, "interference": 1.0, "prompt_tokens": 80, "answer_tokens": 128}
    (tmp_path / "node.json").write_text(json.dumps(node))
    changed = policy("set", "--url", gateway.url, "--kind", "curve", "--node", str(tmp_path / "node.json"))
    assert changed.output.startswith("llama: curve low=triton high=vllm ")
    assert " node=measured fallback=high " in changed.output
    assert " dwell_s=0.3 " in changed.output  # its own default, not what the threshold had
    shown = json.loads(policy("show", "--url", gateway.url, "--json").output)["models"][0]["policy"]
    assert {key: shown["node"][key] for key in node if key not in {"low", "high"}} == {
        "interference": 1.0,
        "prompt_tokens": 80,
        "answer_tokens": 128,
    }
    assert {key: shown["node"]["low"][key] for key in engine} == engine


def test_show_has_a_line_of_the_policys_readings_and_one_for_a_wrong_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = {"decode_scale": 1.8, "model_wrong": 1.0}
    monkeypatch.setattr(Threshold, "readings", lambda _self, _state: {"vllm": readings})
    with Operated().serving() as gateway:
        result = policy("show", "--url", gateway.url)
    assert "WRONG MODEL: vllm is not the engine that was measured; calibrate again" in result.output
    assert "vllm beside its model: decode scale 1.8, model wrong 1\n" in result.output
    assert "triton beside" not in result.output


def test_a_node_model_of_an_older_form_is_refused_with_what_to_do(gateway: Operated, tmp_path: Path) -> None:
    engine = {"steps_ms": [[1, 5.0]], "prefill_tokens_per_s": 50_000, "max_in_flight": 64}
    node = {"low": engine, "high": engine, "interference": 1.0, "prompt_tokens": 80, "answer_tokens": 128}
    (tmp_path / "node.json").write_text(json.dumps(node))
    refused = policy("set", "--url", gateway.url, "--kind", "curve", "--node", str(tmp_path / "node.json"))
    assert (refused.exit_code, "`crossover calibrate --apply` makes a new one" in refused.output) == (1, True)


def test_set_can_swap_the_sides(gateway: Operated) -> None:
    result = policy("set", "--url", gateway.url, "--low", "vllm", "--high", "triton", "--dwell", "0.5", "--json")
    changed = json.loads(result.output)
    assert (changed["low"], changed["high"], changed["dwell_s"], changed["up"]) == ("vllm", "triton", 0.5, 48)


def test_a_refusal_names_the_field_and_exits_1(gateway: Operated) -> None:
    result = policy("set", "--url", gateway.url, "--down", "48")
    assert (result.exit_code, result.output) == (1, "Error: down: must be below up (48), is 48\n")
    assert gateway.router.model_state().current.version == 1


def test_an_unknown_model_exits_1(gateway: Operated) -> None:
    for command in (("show",), ("set", "--up", "50")):
        result = policy(*command, "--url", gateway.url, "--model", "gpt")
        assert (result.exit_code, result.output) == (1, "Error: the model 'gpt' does not exist\n")


def test_with_several_models_set_wants_one_and_show_prints_all() -> None:
    with Operated(models={"llama": POLICY, "qwen": None}).serving() as gateway:
        shown = policy("show", "--url", gateway.url)
        assert "llama: threshold" in shown.output
        assert "qwen: single" in shown.output
        refused = policy("set", "--url", gateway.url, "--up", "50")
        assert (refused.exit_code, refused.output) == (1, "Error: model: name one of llama, qwen\n")
        single = policy("set", "--url", gateway.url, "--up", "50", "--model", "qwen")
        assert (single.exit_code, "one backend" in single.output) == (1, True)


def test_the_operator_key_comes_from_the_option_or_the_environment() -> None:
    with Operated(key="open-sesame").serving() as gateway:
        without = policy("show", "--url", gateway.url)
        assert without.exit_code == 1
        assert "Authorization: Bearer" in without.output
        assert policy("show", "--url", gateway.url, "--key", "open-sesame").exit_code == 0
        environ = {"CROSSOVER_OPERATOR_KEY": "open-sesame", "CROSSOVER_URL": gateway.url}
        assert policy("show", environ=environ).exit_code == 0


def test_a_gateway_that_is_not_there_is_one_line_and_exit_2() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = policy("show", "--url", url)
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: no gateway answers at {url}: ")
    assert result.output.count("\n") == 1


class Stranger(BaseHTTPRequestHandler):
    """Some other server: JSON on GET, but not ours."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]  # set by the test

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.mark.parametrize("answer", [b"<html>", b'{"detail": "Not Found"}', b"[]"])
def test_another_server_at_the_url_is_called_one(answer: bytes) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        server.answer = answer  # type: ignore[attr-defined]  # read by the handler
        thread = Thread(target=server.handle_request)
        thread.start()
        result = policy("show", "--url", f"http://127.0.0.1:{server.server_port}")
        thread.join()
    assert result.exit_code == 2
    assert "is no Crossover gateway: HTTP 404" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set",), "nothing to change"),
        (("set", "--up", "many"), "'many' is not a valid integer"),
        (("set", "--kind", "magic"), "'magic' is not one of 'threshold', 'share'"),
        (("show", "--url", "localhost:8080"), "must look like http://host:port"),
        (("show", "--url", "http://[::1"), "Invalid value for '--url'"),
        (("show", "--key", "two words"), "must be printable ASCII without blanks"),
    ],
)
def test_bad_arguments_are_usage_errors(arguments: tuple[str, ...], message: str) -> None:
    result = policy(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("arguments", [(), ("show",), ("set",)])
def test_help_has_an_example(arguments: tuple[str, ...]) -> None:
    result = policy(*arguments, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output
    assert "crossover policy" in result.output

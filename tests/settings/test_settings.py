"""crossover.yaml as a table: what is accepted, what every mistake is called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gateway.address import Target, parse_target
from gateway.configuration import SettingsError, default_path, load_settings, parse_settings
from gateway.core import Need
from gateway.engine_kinds import ENGINE_KINDS
from gateway.routing.policies import Share, Threshold
from gateway.settings import (
    AllowSettings,
    RelaySettings,
    StreamSettings,
    TritonSettings,
    VLLMSettings,
)

Document: TypeAlias = dict[str, Any]  # YAML as parsed
Edit: TypeAlias = Callable[[Document], object]

FULL = """
listen: 127.0.0.1:8080
workers: 4
models:
  - id: llama-3.1-8b
    tokenizer: tokenizer
    backends:
      triton: {kind: triton, url: "grpc://127.0.0.1:8001", model: tensorrt_llm, metrics_url: "http://127.0.0.1:8002/metrics"}
      vllm:   {kind: vllm, url: "http://127.0.0.1:8010"}
    policy: {kind: threshold, low: triton, high: vllm, up: 48, down: 40, dwell_s: 1.0}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer").mkdir()
    return tmp_path


@pytest.fixture
def document() -> Document:
    return {
        "models": [
            {
                "id": "llama",
                "tokenizer": "tokenizer",
                "backends": {
                    "triton": {"kind": "triton", "url": "grpc://127.0.0.1:8001"},
                    "vllm": {"kind": "vllm", "url": "http://127.0.0.1:8010"},
                },
                "policy": {"low": "triton", "high": "vllm", "up": 48, "down": 40},
            }
        ]
    }


def model(document: Document) -> Document:
    first: Document = document["models"][0]
    return first


def triton(document: Document) -> Document:
    section: Document = model(document)["backends"]["triton"]
    return section


def policy(document: Document) -> Document:
    section: Document = model(document)["policy"]
    return section


def test_the_documented_file_is_read_into_slices(folder: Path) -> None:
    path = folder / "crossover.yaml"
    path.write_text(FULL)
    settings = load_settings(path, environ={})
    (only,) = settings.models
    assert (settings.listen_host, settings.listen_port, settings.workers) == ("127.0.0.1", 8080, 4)
    assert only.tokenizer == folder / "tokenizer"
    assert only.backends == {
        "triton": TritonSettings(
            name="triton",
            url="grpc://127.0.0.1:8001",
            model="tensorrt_llm",
            metrics_url="http://127.0.0.1:8002/metrics",
        ),
        "vllm": VLLMSettings(name="vllm", url="http://127.0.0.1:8010"),
    }
    assert only.policy == Threshold(low="triton", high="vllm", up=48, down=40, dwell_s=1.0)


def test_what_is_left_out_has_its_default(folder: Path, document: Document) -> None:
    settings = parse_settings(document, folder, environ={})
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 8080)
    assert (settings.log_level, settings.operator_key) == ("info", None)
    assert settings.runs_folder == folder / "runs"
    assert settings.models[0].policy == Threshold(low="triton", high="vllm", up=48, down=40, dwell_s=1.0)


def test_a_share_is_a_policy_too(folder: Path, document: Document) -> None:
    model(document)["policy"] = {"kind": "share", "low": "triton", "high": "vllm", "share": 0.05}
    policy = parse_settings(document, folder, environ={}).models[0].policy
    assert policy == Share(low="triton", high="vllm", share=0.05)


def test_one_backend_needs_no_policy(folder: Path, document: Document) -> None:
    del model(document)["policy"], model(document)["backends"]["vllm"]
    assert parse_settings(document, folder, environ={}).models[0].policy is None


def test_the_operator_corrects_capabilities(folder: Path, document: Document) -> None:
    triton(document)["capabilities"] = {"guided_decoding": False}
    model(document)["backends"]["vllm"]["capabilities"] = dict.fromkeys(Need, True) | {"min_p": None}
    backends = parse_settings(document, folder, environ={}).models[0].backends
    assert isinstance(backends["triton"], TritonSettings)
    assert isinstance(backends["vllm"], VLLMSettings)
    assert backends["triton"].capabilities == {Need.GUIDE: False}
    assert backends["vllm"].capabilities == {need: True for need in Need if need is not Need.MIN_P}


def allowed(folder: Path, document: Document, kind: str, **fields: object) -> AllowSettings | None:
    model(document)["backends"]["third"] = {"kind": kind, "url": "http://127.0.0.1:9", **fields}
    third = parse_settings(document, folder, environ={}).models[0].backends["third"]
    assert isinstance(third, VLLMSettings | RelaySettings)
    return third.allow


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        ("all", None),
        ({}, AllowSettings()),
        ({"media": []}, AllowSettings(media=frozenset())),
        ({"fields": ["documents"]}, AllowSettings(fields=frozenset({"documents"}))),
        (
            {"media": ["data", "https://Images.Example.com:443/", "http://[FD00::1]:8080", "http://10.0.0.7:80"]},
            AllowSettings(
                frozenset({"data", "https://images.example.com", "http://[fd00::1]:8080", "http://10.0.0.7"})
            ),
        ),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "relay"])
def test_the_operator_says_what_of_a_body_goes_on(
    folder: Path, document: Document, kind: str, allow: object, expected: AllowSettings | None
) -> None:
    assert allowed(folder, document, kind, allow=allow) == expected


def test_without_a_word_only_a_vllm_is_kept_from_anything(folder: Path, document: Document) -> None:
    assert allowed(folder, document, "vllm") == AllowSettings(media=frozenset({"data"}), fields=frozenset())
    assert allowed(folder, document, "relay") is None


def test_a_priority_that_counts_goes_on_too(folder: Path, document: Document) -> None:
    fields: Document = {"capabilities": {"priority": True}, "allow": {"fields": ["documents"]}}
    assert allowed(folder, document, "vllm", **fields) == AllowSettings(fields=frozenset({"documents", "priority"}))


def test_a_models_parsers_and_paths_and_the_streams_are_read(folder: Path, document: Document) -> None:
    plain = parse_settings(document, folder, environ={})
    assert (plain.models[0].tool_parser, plain.models[0].reasoning_parser) == ("auto", "auto")
    assert plain.models[0].reasoning_field == "reasoning"
    assert plain.models[0].relay_paths == {"/v1/embeddings"}
    assert plain.streams == StreamSettings(None)
    model(document).update(tool_parser="hermes", reasoning_parser="think", relay_paths=["/v1/audio/speech", "/v1/x"])
    model(document)["reasoning_field"] = "reasoning_content"
    document["streams"] = {"keep_alive_s": 15.0, "keep_alive_commits": True}
    told = parse_settings(document, folder, environ={})
    assert (told.models[0].tool_parser, told.models[0].reasoning_parser) == ("hermes", "think")
    assert told.models[0].reasoning_field == "reasoning_content"
    assert told.models[0].relay_paths == {"/v1/audio/speech", "/v1/x"}
    assert told.streams == StreamSettings(15.0, keep_alive_commits=True)


RELAY: Document = {"kind": "relay", "url": "http://127.0.0.1:9"}
TRITON: Document = {"kind": "triton", "url": "grpc://127.0.0.1:9"}
VLLM: Document = {"kind": "vllm", "url": "http://127.0.0.1:9"}


@pytest.mark.parametrize("url", ["http://unix:/run/vllm.sock", "http://unix:/run/vllm.sock:"])
def test_an_engine_may_be_at_a_socket(folder: Path, document: Document, url: str) -> None:
    model(document)["backends"]["vllm"]["url"] = url
    backend = parse_settings(document, folder, environ={}).models[0].backends["vllm"]
    assert backend.url == "http://unix:/run/vllm.sock:"
    assert parse_target(f"{backend.url}/health?x=:") == Target("/run/vllm.sock", "http://localhost/health?x=:")
    assert parse_target("http://unix:8000/health") == Target(None, "http://unix:8000/health")


def test_a_metrics_page_may_be_at_a_socket(folder: Path, document: Document) -> None:
    triton(document)["metrics_url"] = "http://unix:/run/triton.sock:/metrics?a=:"
    backend = parse_settings(document, folder, environ={}).models[0].backends["triton"]
    assert isinstance(backend, TritonSettings)
    assert backend.metrics_url == "http://unix:/run/triton.sock:/metrics?a=:"
    assert parse_target(backend.metrics_url) == Target("/run/triton.sock", "http://localhost/metrics?a=:")


@pytest.mark.parametrize(
    ("backends", "has_tokenizer", "is_relayed"),
    [
        ([TRITON, VLLM], True, False),
        ([TRITON, VLLM, RELAY], True, False),
        ([VLLM, RELAY], True, False),
        ([VLLM, VLLM, RELAY], False, True),
        ([VLLM, RELAY], False, True),
        ([RELAY, RELAY], True, True),
        ([RELAY, RELAY], False, True),
    ],
)
def test_a_model_is_relayed_if_nothing_here_could_take_its_tokens(
    folder: Path, document: Document, backends: list[Document], has_tokenizer: bool, is_relayed: bool
) -> None:
    model(document)["backends"] = dict(zip(("triton", "vllm", "third"), backends, strict=False))
    if not has_tokenizer:
        del model(document)["tokenizer"]
    if has_tokenizer and backends == [VLLM, RELAY]:  # one that is chosen from
        del model(document)["policy"]
    assert parse_settings(document, folder, environ={}).models[0].is_relayed is is_relayed


*FIRST, LAST = (f"kind: {kind}" for kind in ENGINE_KINDS)
ANY_KIND = f"{', '.join(FIRST)} or {LAST}"
RELAYED_KIND = " or ".join(name for name, kind in ENGINE_KINDS.items() if not kind.settings.takes_tokens)

MISTAKES: dict[str, tuple[Edit, str]] = {
    "a policy where one backend takes token ids": (
        lambda d: model(d)["backends"].update(vllm=RELAY),
        "models.0.policy: there is nothing to choose, only triton takes what is routed; remove it",
    ),
    "a policy that would choose a backend without token ids": (
        lambda d: model(d)["backends"].update(vllm=RELAY, third=VLLM),
        "models.0.policy.high: 'vllm' is not a backend of this model (it has triton, third)",
    ),
    "misspelt backend key": (
        lambda d: triton(d).update(urll="grpc://h:1"),
        "models.0.backends.triton.urll: unknown key",
    ),
    "misspelt top key": (lambda d: d.update(model=[]), "model: unknown key"),
    "misspelt policy key": (lambda d: policy(d).update(upp=3), "models.0.policy.upp: unknown key"),
    "nothing allowed": (
        lambda d: model(d)["backends"]["vllm"].update(allow=None),
        "models.0.backends.vllm.allow: must be all, or a mapping of media and fields",
    ),
    "allowed by another word": (
        lambda d: model(d)["backends"]["vllm"].update(allow="any"),
        "models.0.backends.vllm.allow: must be all, or a mapping of media and fields",
    ),
    "a host without a scheme": (
        lambda d: model(d)["backends"]["vllm"].update(allow={"media": ["images.example.com"]}),
        "models.0.backends.vllm.allow.media.0: must be a scheme such as data, or an origin: https://host:port",
    ),
    "an origin with a path": (
        lambda d: model(d)["backends"]["vllm"].update(allow={"media": ["data", "https://h/a"]}),
        "models.0.backends.vllm.allow.media.1: must be a scheme such as data, or an origin: https://host:port",
    ),
    "an unknown key of allow": (
        lambda d: model(d)["backends"]["vllm"].update(allow={"hosts": []}),
        "models.0.backends.vllm.allow.hosts: unknown key",
    ),
    "vllm given a Triton key": (
        lambda d: model(d)["backends"]["vllm"].update(model="m"),
        "models.0.backends.vllm.model: unknown key",
    ),
    "missing url": (lambda d: triton(d).pop("url"), "models.0.backends.triton.url: required"),
    "wrong scheme": (
        lambda d: triton(d).update(url="http://h:1"),
        "models.0.backends.triton.url: must look like grpc://host:port",
    ),
    "no port": (
        lambda d: model(d)["backends"]["vllm"].update(url="http://h"),
        "models.0.backends.vllm.url: must look like http://host:port",
    ),
    "url with a path": (
        lambda d: model(d)["backends"]["vllm"].update(url="http://h:1/v1"),
        "models.0.backends.vllm.url: must look like http://host:port",
    ),
    "socket without a path": (
        lambda d: model(d)["backends"]["vllm"].update(url="http://unix:/"),
        "models.0.backends.vllm.url: must look like http://unix:/path/of.sock",
    ),
    "socket that is a folder": (
        lambda d: model(d)["backends"]["vllm"].update(url="http://unix:/run/vllm/"),
        "models.0.backends.vllm.url: must look like http://unix:/path/of.sock",
    ),
    "socket and a path to ask for": (
        lambda d: model(d)["backends"]["vllm"].update(url="http://unix:/run/vllm.sock:/v1"),
        "models.0.backends.vllm.url: must look like http://unix:/path/of.sock",
    ),
    "socket with a path too long": (
        lambda d: model(d)["backends"]["vllm"].update(url=f"http://unix:/{'x' * 107}"),
        "models.0.backends.vllm.url: names a socket whose path is longer than the 107 bytes a system takes",
    ),
    "Triton at a socket": (
        lambda d: triton(d).update(url="grpc://unix:/run/triton.sock"),
        "models.0.backends.triton.url: must look like grpc://host:port",
    ),
    "metrics at a socket, without a page": (
        lambda d: triton(d).update(metrics_url="http://unix:/run/triton.sock"),
        "models.0.backends.triton.metrics_url: must look like http://unix:/path/of.sock:/metrics",
    ),
    "metrics at a socket that is a folder": (
        lambda d: triton(d).update(metrics_url="http://unix:/run/:/metrics"),
        "models.0.backends.triton.metrics_url: must look like http://unix:/path/of.sock",
    ),
    "bad metrics url": (
        lambda d: triton(d).update(metrics_url="h:8002"),
        "models.0.backends.triton.metrics_url: must look like http://host:port/metrics",
    ),
    "metrics at a socket of no name": (
        lambda d: triton(d).update(metrics_url="http://unix::/metrics"),
        "models.0.backends.triton.metrics_url: must look like http://host:port/metrics",
    ),
    "metrics at no port": (
        lambda d: triton(d).update(metrics_url="http://h:http/metrics"),
        "models.0.backends.triton.metrics_url: must look like http://host:port/metrics",
    ),
    "relay over gRPC": (
        lambda d: d["models"][0]["backends"].update(triton={"kind": "relay", "url": "grpc://127.0.0.1:8001"}),
        "models.0.backends.triton.url: must look like http://host:port",
    ),
    "no kind": (
        lambda d: triton(d).pop("kind"),
        f"models.0.backends.triton: needs {ANY_KIND}",
    ),
    "backend is a string": (
        lambda d: model(d)["backends"].update(triton="grpc://h:1"),
        f"models.0.backends.triton: needs {ANY_KIND}",
    ),
    "text for a number": (lambda d: policy(d).update(up="48"), "models.0.policy.up: input should be a valid integer"),
    "truth for a number": (lambda d: policy(d).update(up=True), "models.0.policy.up: input should be a valid integer"),
    "up of zero": (
        lambda d: policy(d).update(up=0),
        "models.0.policy.up: input should be greater than or equal to 1",
    ),
    "infinite dwell": (
        lambda d: policy(d).update(dwell_s=float("inf")),
        "models.0.policy.dwell_s: input should be a finite number",
    ),
    "down at up": (lambda d: policy(d).update(down=48), "models.0.policy.down: must be below up (48), is 48"),
    "a threshold without numbers": (lambda d: policy(d).pop("up"), "models.0.policy.up: required"),
    "a share without one": (
        lambda d: d["models"][0].update(policy={"kind": "share", "low": "triton", "high": "vllm"}),
        "models.0.policy.share: required",
    ),
    "a share with a threshold": (
        lambda d: d["models"][0].update(policy={"kind": "share", "low": "triton", "high": "vllm", "up": 3, "share": 1}),
        "models.0.policy.up: is no key of kind share",
    ),
    "more than everything": (
        lambda d: d["models"][0].update(policy={"kind": "share", "low": "triton", "high": "vllm", "share": 1.1}),
        "models.0.policy.share: input should be less than or equal to 1",
    ),
    "unknown low": (
        lambda d: policy(d).update(low="trt"),
        "models.0.policy.low: 'trt' is not a backend of this model (it has triton, vllm)",
    ),
    "low is high": (
        lambda d: policy(d).update(high="triton"),
        "models.0.policy.high: must differ from low, both are 'triton'",
    ),
    "two backends, no policy": (
        lambda d: model(d).pop("policy"),
        "models.0.policy: required to choose between triton, vllm",
    ),
    "one backend, a policy": (
        lambda d: model(d)["backends"].pop("vllm"),
        "models.0.policy: there is nothing to choose, only triton takes what is routed; remove it",
    ),
    "no backend": (
        lambda d: model(d).update(backends={}),
        "models.0.backends: dictionary should have at least 1 item after validation, not 0",
    ),
    "backend name unfit for a header": (
        lambda d: model(d)["backends"].update({"Tri ton": triton(d)}),
        "models.0.backends.Tri ton: string should match pattern '^[a-z0-9][a-z0-9_-]{0,62}$'",
    ),
    "tokenizer is no directory": (
        lambda d: model(d).update(tokenizer="/no/such/place"),
        "models.0.tokenizer: /no/such/place is not a directory",
    ),
    "no tokenizer for Triton": (
        lambda d: (model(d).pop("tokenizer"), model(d)["backends"].update(vllm=RELAY)),
        "models.0.tokenizer: required, backend triton of kind triton takes token ids only",
    ),
    "no tokenizer for vLLM alone": (
        lambda d: (model(d).pop("tokenizer"), model(d)["backends"].update(triton=VLLM)),
        f"models.0.tokenizer: required, unless a backend is of kind {RELAYED_KIND}",
    ),
    "unknown capability": (
        lambda d: model(d)["backends"]["vllm"].update(capabilities={"tools": True}),
        "models.0.backends.vllm.capabilities.tools: unknown key",
    ),
    "a capability that Triton is never asked for": (
        lambda d: triton(d).update(capabilities={"logprobs": True}),
        "models.0.backends.triton.capabilities.logprobs: unknown key",
    ),
    "capability that is no yes or no": (
        lambda d: triton(d).update(capabilities={"logit_bias": "yes"}),
        "models.0.backends.triton.capabilities.logit_bias: input should be a valid boolean",
    ),
    "unknown tool parser": (
        lambda d: model(d).update(tool_parser="pythonic"),
        "models.0.tool_parser: input should be 'auto', 'none', 'hermes', 'llama3_json' or 'mistral'",
    ),
    "unknown reasoning parser": (
        lambda d: model(d).update(reasoning_parser="r1"),
        "models.0.reasoning_parser: input should be 'auto', 'none' or 'think'",
    ),
    "relay path that is answered here": (
        lambda d: model(d).update(relay_paths=["/v1/x", "/v1/completions"]),
        "models.0.relay_paths.1: is answered by the gateway itself",
    ),
    "relay path elsewhere": (
        lambda d: model(d).update(relay_paths=["/metrics"]),
        "models.0.relay_paths.0: string should match pattern '^/v1(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$'",
    ),
    "relay path that climbs": (
        lambda d: model(d).update(relay_paths=["/v1/../metrics"]),
        "models.0.relay_paths.0: string should match pattern '^/v1(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$'",
    ),
    "keep-alive without a pause": (
        lambda d: d.update(streams={"keep_alive_s": 0}),
        "streams.keep_alive_s: input should be greater than 0",
    ),
    "no models": (lambda d: d.pop("models"), "models: required"),
    "listen without port": (
        lambda d: d.update(listen="localhost"),
        "listen: must look like host:port, for example 127.0.0.1:8080",
    ),
    "listen port too high": (
        lambda d: d.update(listen="localhost:65536"),
        "listen: must look like host:port, for example 127.0.0.1:8080",
    ),
    "no workers": (lambda d: d.update(workers=0), "workers: input should be greater than or equal to 1"),
    "too many workers": (lambda d: d.update(workers=65), "workers: input should be less than or equal to 64"),
    "unknown limit": (lambda d: d.update(limits={"max_body": 1}), "limits.max_body: unknown key"),
    "zero probe interval": (
        lambda d: d.update(probe={"interval_s": 0}),
        "probe.interval_s: input should be greater than 0",
    ),
    "short operator key": (
        lambda d: d.update(operator_key="abc"),
        r"operator_key: string should match pattern '^[\x21-\x7e]{8,256}$'",
    ),
}


@pytest.mark.parametrize(("edit", "problem"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_by_its_key_path(folder: Path, document: Document, edit: Edit, problem: str) -> None:
    edit(document)
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, folder, environ={})
    assert caught.value.problems == [problem]


def test_a_model_id_used_twice_is_reported_at_both(folder: Path, document: Document) -> None:
    document["models"].append(model(document))
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, folder, environ={})
    assert caught.value.problems == ["models.0.id: 'llama' is used 2 times", "models.1.id: 'llama' is used 2 times"]


def test_all_problems_are_reported_at_once(folder: Path, document: Document) -> None:
    policy(document).update(up="x")
    document["listn"] = "127.0.0.1:1"
    with pytest.raises(SettingsError) as caught:
        parse_settings(document, folder, environ={})
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8080", ("::1", 8080)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_listen_is_split_as_a_server_wants_it(
    folder: Path, document: Document, listen: str, address: tuple[str, int]
) -> None:
    document["listen"] = listen
    settings = parse_settings(document, folder, environ={})
    assert (settings.listen_host, settings.listen_port) == address


def test_the_environment_overrides_the_file(folder: Path, document: Document) -> None:
    document |= {"listen": "127.0.0.1:1", "operator_key": "from-the-file", "log_level": "error"}
    environ = {
        "CROSSOVER_LISTEN": "127.0.0.1:2",
        "CROSSOVER_OPERATOR_KEY": "from-the-environment",
        "CROSSOVER_LOG_LEVEL": "debug",
    }
    settings = parse_settings(document, folder, environ)
    assert (settings.listen_port, settings.operator_key, settings.log_level) == (2, "from-the-environment", "debug")


def test_a_bad_override_is_reported_like_the_key_it_overrides(folder: Path, document: Document) -> None:
    with pytest.raises(SettingsError, match=r"^log_level: input should be 'debug'"):
        parse_settings(document, folder, {"CROSSOVER_LOG_LEVEL": "loud"})


def test_the_file_is_crossover_yaml_here_unless_the_environment_names_another() -> None:
    assert default_path({}) == Path("crossover.yaml")
    assert default_path({"CROSSOVER_CONFIG": "/etc/crossover.yaml"}) == Path("/etc/crossover.yaml")


def test_the_operator_key_is_not_in_the_repr(folder: Path, document: Document) -> None:
    document["operator_key"] = "open-sesame"
    assert "open-sesame" not in repr(parse_settings(document, folder, environ={}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: [", "not YAML"),
        ("- a list", "the file must be a mapping"),
        ("", "the file must be a mapping"),
        ("listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", "key 'listen' stands twice"),
        ("policy: {up: 1, up: 2}", "key 'up' stands twice"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "crossover.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        load_settings(path, environ={})


def test_a_missing_file_is_a_problem_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^No such file or directory$"):
        load_settings(tmp_path / "nowhere.yaml", environ={})

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
from gateway.settings import AllowSettings, RelaySettings, Settings, StreamSettings, TritonSettings, VLLMSettings

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
    backends = {"triton": {**TRITON, "url": "grpc://127.0.0.1:8001"}, "vllm": {**VLLM, "url": "http://127.0.0.1:8010"}}
    policy = {"low": "triton", "high": "vllm", "up": 48, "down": 40}
    return {"models": [{"id": "llama", "tokenizer": "tokenizer", "backends": backends, "policy": policy}]}


def model(document: Document) -> Document:
    first: Document = document["models"][0]
    return first


def triton(document: Document) -> Document:
    section: Document = model(document)["backends"]["triton"]
    return section


def vllm(document: Document) -> Document:
    section: Document = model(document)["backends"]["vllm"]
    return section


def policy(document: Document) -> Document:
    section: Document = model(document)["policy"]
    return section


def read(folder: Path, document: Document) -> Settings:
    return parse_settings(document, folder, environ={})


def test_the_documented_file_is_read_into_slices(folder: Path) -> None:
    path = folder / "crossover.yaml"
    path.write_text(FULL)
    settings = load_settings(path, environ={})
    (only,) = settings.models
    assert (settings.listen_host, settings.listen_port, settings.workers) == ("127.0.0.1", 8080, 4)
    assert only.tokenizer == folder / "tokenizer"
    assert only.backends == {
        "triton": TritonSettings(
            "triton", "grpc://127.0.0.1:8001", model="tensorrt_llm", metrics_url="http://127.0.0.1:8002/metrics"
        ),
        "vllm": VLLMSettings(name="vllm", url="http://127.0.0.1:8010"),
    }
    assert only.policy == Threshold(low="triton", high="vllm", up=48, down=40, dwell_s=1.0)


def test_what_is_left_out_has_its_default(folder: Path, document: Document) -> None:
    settings = read(folder, document)
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 8080)
    assert (settings.log_level, settings.operator_key) == ("info", None)
    assert settings.runs_folder == folder / "runs"
    assert settings.arrivals_file is None
    assert read(folder, {**document, "arrivals_file": "trace.jsonl"}).arrivals_file == folder / "trace.jsonl"
    assert settings.models[0].policy == Threshold(low="triton", high="vllm", up=48, down=40, dwell_s=1.0)


def test_a_share_is_a_policy_too(folder: Path, document: Document) -> None:
    model(document)["policy"] = {"kind": "share", "low": "triton", "high": "vllm", "share": 0.05}
    policy = read(folder, document).models[0].policy
    assert policy == Share(low="triton", high="vllm", share=0.05)


def test_one_backend_needs_no_policy(folder: Path, document: Document) -> None:
    del model(document)["policy"], model(document)["backends"]["vllm"]
    assert read(folder, document).models[0].policy is None


def test_the_operator_corrects_capabilities(folder: Path, document: Document) -> None:
    triton(document)["capabilities"] = {"guided_decoding": False}
    vllm(document)["capabilities"] = dict.fromkeys(Need, True) | {"min_p": None}
    backends = read(folder, document).models[0].backends
    assert isinstance(backends["triton"], TritonSettings)
    assert isinstance(backends["vllm"], VLLMSettings)
    assert backends["triton"].capabilities == {Need.GUIDE: False}
    assert backends["vllm"].capabilities == {need: True for need in Need if need is not Need.MIN_P}


def allowed(folder: Path, document: Document, kind: str, **fields: object) -> AllowSettings | None:
    model(document)["backends"]["third"] = {"kind": kind, "url": "http://127.0.0.1:9", **fields}
    third = read(folder, document).models[0].backends["third"]
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
    plain = read(folder, document)
    assert (plain.models[0].tool_parser, plain.models[0].reasoning_parser) == ("auto", "auto")
    assert plain.models[0].reasoning_field == "reasoning"
    assert plain.models[0].relay_paths == {"/v1/embeddings"}
    assert plain.streams == StreamSettings(None)
    model(document).update(tool_parser="hermes", reasoning_parser="think", relay_paths=["/v1/audio/speech", "/v1/x"])
    model(document)["reasoning_field"] = "reasoning_content"
    document["streams"] = {"keep_alive_s": 15.0, "keep_alive_commits": True}
    told = read(folder, document)
    assert (told.models[0].tool_parser, told.models[0].reasoning_parser) == ("hermes", "think")
    assert told.models[0].reasoning_field == "reasoning_content"
    assert told.models[0].relay_paths == {"/v1/audio/speech", "/v1/x"}
    assert told.streams == StreamSettings(15.0, keep_alive_commits=True)


RELAY: Document = {"kind": "relay", "url": "http://127.0.0.1:9"}
TRITON: Document = {"kind": "triton", "url": "grpc://127.0.0.1:9"}
VLLM: Document = {"kind": "vllm", "url": "http://127.0.0.1:9"}


@pytest.mark.parametrize("url", ["http://unix:/run/vllm.sock", "http://unix:/run/vllm.sock:"])
def test_an_engine_may_be_at_a_socket(folder: Path, document: Document, url: str) -> None:
    vllm(document)["url"] = url
    backend = read(folder, document).models[0].backends["vllm"]
    assert backend.url == "http://unix:/run/vllm.sock:"
    assert parse_target(f"{backend.url}/health?x=:") == Target("/run/vllm.sock", "http://localhost/health?x=:")
    assert parse_target("http://unix:8000/health") == Target(None, "http://unix:8000/health")


def test_a_metrics_page_may_be_at_a_socket(folder: Path, document: Document) -> None:
    triton(document)["metrics_url"] = "http://unix:/run/triton.sock:/metrics?a=:"
    backend = read(folder, document).models[0].backends["triton"]
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
    assert read(folder, document).models[0].is_relayed is is_relayed


*FIRST, LAST = (f"kind: {kind}" for kind in ENGINE_KINDS)
ANY_KIND = f"{', '.join(FIRST)} or {LAST}"
RELAYED_KIND = " or ".join(name for name, kind in ENGINE_KINDS.items() if not kind.settings.takes_tokens)


def at(section: Callable[[Document], Document], path: str) -> Callable[..., tuple[Edit, str]]:
    """Makes rows of MISTAKES: one key of a section gets a wrong value; the problem names it, or a place within it."""

    def make(problem: str, within: str = "", /, **field: object) -> tuple[Edit, str]:
        (key,) = field
        return lambda document: section(document).update(field), f"{path}{key}{within}: {problem}"

    return make


def share(**fields: object) -> Document:
    return {"kind": "share", "low": "triton", "high": "vllm", **fields}


top, in_model, in_policy = at(lambda d: d, ""), at(model, "models.0."), at(policy, "models.0.policy.")
in_triton, in_vllm = at(triton, "models.0.backends.triton."), at(vllm, "models.0.backends.vllm.")
URL, SOCKET = "must look like http://host:port", "must look like http://unix:/path/of.sock"
GRPC, LISTEN = "must look like grpc://host:port", "must look like host:port, for example 127.0.0.1:8080"
ORIGIN = "must be a scheme such as data, or an origin: https://host:port"
ALLOW = "must be all, or a mapping of media and fields"
NO_CHOICE = "models.0.policy: there is nothing to choose, only triton takes what is routed; remove it"
RELAY_PATH = "string should match pattern '^/v1(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+$'"
PARSERS = "input should be 'auto', 'none', 'hermes', 'llama3_json' or 'mistral'"
MISTAKES: dict[str, tuple[Edit, str]] = {
    "a policy where one backend takes token ids": (lambda d: model(d)["backends"].update(vllm=RELAY), NO_CHOICE),
    "a policy that would choose a backend without token ids": (
        lambda d: model(d)["backends"].update(vllm=RELAY, third=VLLM),
        "models.0.policy.high: 'vllm' is not a backend of this model (it has triton, third)",
    ),
    "a policy on trial with a mistake": (
        lambda d: model(d).update(dry={"kind": "threshold", "low": "triton", "high": "vllm", "up": 3, "down": 3}),
        "models.0.dry.down: must be below up (3), is 3",
    ),
    "a policy on trial where there is nothing to choose": (
        lambda d: (model(d).update(dry=model(d).pop("policy")), model(d)["backends"].update(vllm=RELAY)),
        NO_CHOICE.replace("policy", "dry"),
    ),
    "misspelt backend key": in_triton("unknown key", urll="grpc://h:1"),
    "misspelt top key": top("unknown key", model=[]),
    "misspelt policy key": in_policy("unknown key", upp=3),
    "nothing allowed": in_vllm(ALLOW, allow=None),
    "allowed by another word": in_vllm(ALLOW, allow="any"),
    "a host without a scheme": in_vllm(ORIGIN, ".media.0", allow={"media": ["images.example.com"]}),
    "an origin with a path": in_vllm(ORIGIN, ".media.1", allow={"media": ["data", "https://h/a"]}),
    "an unknown key of allow": in_vllm("unknown key", ".hosts", allow={"hosts": []}),
    "vllm given a Triton key": in_vllm("unknown key", model="m"),
    "missing url": (lambda d: triton(d).pop("url"), "models.0.backends.triton.url: required"),
    "wrong scheme": in_triton(GRPC, url="http://h:1"),
    "no port": in_vllm(URL, url="http://h"),
    "url with a path": in_vllm(URL, url="http://h:1/v1"),
    "socket without a path": in_vllm(SOCKET, url="http://unix:/"),
    "socket that is a folder": in_vllm(SOCKET, url="http://unix:/run/vllm/"),
    "socket and a path to ask for": in_vllm(SOCKET, url="http://unix:/run/vllm.sock:/v1"),
    "socket with a path too long": in_vllm(
        "names a socket whose path is longer than the 107 bytes a system takes", url=f"http://unix:/{'x' * 107}"
    ),
    "Triton at a socket": in_triton(GRPC, url="grpc://unix:/run/triton.sock"),
    "metrics at a socket, without a page": in_triton(SOCKET + ":/metrics", metrics_url="http://unix:/run/triton.sock"),
    "metrics at a socket that is a folder": in_triton(SOCKET, metrics_url="http://unix:/run/:/metrics"),
    "bad metrics url": in_triton(URL + "/metrics", metrics_url="h:8002"),
    "metrics at a socket of no name": in_triton(URL + "/metrics", metrics_url="http://unix::/metrics"),
    "metrics at no port": in_triton(URL + "/metrics", metrics_url="http://h:http/metrics"),
    "relay over gRPC": (
        lambda d: model(d)["backends"].update(triton={"kind": "relay", "url": "grpc://127.0.0.1:8001"}),
        f"models.0.backends.triton.url: {URL}",
    ),
    "no kind": (lambda d: triton(d).pop("kind"), f"models.0.backends.triton: needs {ANY_KIND}"),
    "backend is a string": (
        lambda d: model(d)["backends"].update(triton="grpc://h:1"),
        f"models.0.backends.triton: needs {ANY_KIND}",
    ),
    "text for a number": in_policy("input should be a valid integer", up="48"),
    "truth for a number": in_policy("input should be a valid integer", up=True),
    "up of zero": in_policy("input should be greater than or equal to 1", up=0),
    "infinite dwell": in_policy("input should be a finite number", dwell_s=float("inf")),
    "down at up": in_policy("must be below up (48), is 48", down=48),
    "a threshold without numbers": (lambda d: policy(d).pop("up"), "models.0.policy.up: required"),
    "a share without one": in_model("required", ".share", policy=share()),
    "a share with a threshold": in_model("is no key of kind share", ".up", policy=share(up=3, share=1)),
    "more than everything": in_model("input should be less than or equal to 1", ".share", policy=share(share=1.1)),
    "unknown low": in_policy("'trt' is not a backend of this model (it has triton, vllm)", low="trt"),
    "low is high": in_policy("must differ from low, both are 'triton'", high="triton"),
    "two backends, no policy": (
        lambda d: model(d).pop("policy"),
        "models.0.policy: required to choose between triton, vllm",
    ),
    "one backend, a policy": (lambda d: model(d)["backends"].pop("vllm"), NO_CHOICE),
    "no backend": in_model("dictionary should have at least 1 item after validation, not 0", backends={}),
    "backend name unfit for a header": (
        lambda d: model(d)["backends"].update({"Tri ton": triton(d)}),
        "models.0.backends.Tri ton: string should match pattern '^[a-z0-9][a-z0-9_-]{0,62}$'",
    ),
    "tokenizer is no directory": in_model("/no/such/place is not a directory", tokenizer="/no/such/place"),
    "no tokenizer for Triton": (
        lambda d: (model(d).pop("tokenizer"), model(d)["backends"].update(vllm=RELAY)),
        "models.0.tokenizer: required, backend triton of kind triton takes token ids only",
    ),
    "no tokenizer for vLLM alone": (
        lambda d: (model(d).pop("tokenizer"), model(d)["backends"].update(triton=VLLM)),
        f"models.0.tokenizer: required, unless a backend is of kind {RELAYED_KIND}",
    ),
    "unknown capability": in_vllm("unknown key", ".tools", capabilities={"tools": True}),
    "a capability that Triton is never asked for": in_triton(
        "unknown key", ".logprobs", capabilities={"logprobs": True}
    ),
    "capability that is no yes or no": in_triton(
        "input should be a valid boolean", ".logit_bias", capabilities={"logit_bias": "yes"}
    ),
    "unknown tool parser": in_model(PARSERS, tool_parser="pythonic"),
    "unknown reasoning parser": in_model("input should be 'auto', 'none' or 'think'", reasoning_parser="r1"),
    "relay path that is answered here": in_model(
        "is answered by the gateway itself", ".1", relay_paths=["/v1/x", "/v1/completions"]
    ),
    "relay path elsewhere": in_model(RELAY_PATH, ".0", relay_paths=["/metrics"]),
    "relay path that climbs": in_model(RELAY_PATH, ".0", relay_paths=["/v1/../metrics"]),
    "keep-alive without a pause": top("input should be greater than 0", ".keep_alive_s", streams={"keep_alive_s": 0}),
    "no models": (lambda d: d.pop("models"), "models: required"),
    "listen without port": top(LISTEN, listen="localhost"),
    "listen port too high": top(LISTEN, listen="localhost:65536"),
    "no workers": top("input should be greater than or equal to 1", workers=0),
    "too many workers": top("input should be less than or equal to 64", workers=65),
    "unknown limit": top("unknown key", ".max_body", limits={"max_body": 1}),
    "zero probe interval": top("input should be greater than 0", ".interval_s", probe={"interval_s": 0}),
    "bodies together below one body": top(
        "must not be below max_body_bytes (9000000), is 8000000",
        ".max_bodies_bytes",
        limits={"max_body_bytes": 9_000_000, "max_bodies_bytes": 8_000_000},
    ),
    "an arrivals file without a name": top("must name a file", arrivals_file=""),
    "a runs folder without a name": top("must name a directory", runs_folder=""),
    "backends that are a list": in_model("input should be a valid dictionary", backends=[]),
    "short operator key": top(r"string should match pattern '^[\x21-\x7e]{16,256}$'", operator_key=15 * "k"),
}


def problems_of(folder: Path, document: Document) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(folder, document)
    return list(caught.value.problems)


@pytest.mark.parametrize(("edit", "problem"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_named_by_its_key_path(folder: Path, document: Document, edit: Edit, problem: str) -> None:
    edit(document)
    assert problems_of(folder, document) == [problem]


def test_a_model_id_used_twice_is_reported_at_both(folder: Path, document: Document) -> None:
    document["models"].append(model(document))
    assert problems_of(folder, document) == [
        "models.0.id: 'llama' is used 2 times",
        "models.1.id: 'llama' is used 2 times",
    ]


def test_all_problems_are_reported_at_once(folder: Path, document: Document) -> None:
    policy(document).update(up="x")
    document["listn"] = "127.0.0.1:1"
    assert len(problems_of(folder, document)) == 2


@pytest.mark.parametrize(
    ("listen", "address"),
    [("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:8080", ("::1", 8080)), ("localhost:0", ("localhost", 0))],
)
def test_listen_is_split_as_a_server_wants_it(
    folder: Path, document: Document, listen: str, address: tuple[str, int]
) -> None:
    document["listen"] = listen
    settings = read(folder, document)
    assert (settings.listen_host, settings.listen_port) == address


def test_the_environment_overrides_the_file(folder: Path, document: Document) -> None:
    document |= {"listen": "127.0.0.1:1", "operator_key": "key-from-the-file", "log_level": "error"}
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
    document["operator_key"] = "open-sesame-open"
    assert "open-sesame" not in repr(read(folder, document))


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

"""The id wire's other end: a real gateway turns stamped ids back into text, which the client checks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadtest.lab.bench import tokenizer
from loadtest.lab.bench.cpus import CpuPlan
from loadtest.lab.bench.gateways import Gateway, GatewayLauncher, look_for
from loadtest.lab.bench.load_client import Destination, run_client
from loadtest.lab.bench.systems import SYSTEMS
from loadtest.lab.bench.tokenizer import StampTokenizer
from loadtest.lab.figures.measurement import Measurement
from loadtest.lab.figures.scenarios import Load
from loadtest.mock_engine.build import MOCK, build
from loadtest.mock_engine.engine import MODEL, MockEngine, Pace, mock_engine

PACE = Pace(interval_us=5000)


@pytest.fixture(scope="module")
def stamps(cache: Path) -> StampTokenizer:
    return tokenizer.prepare(cache, learned=400, corpus_bytes=50_000)


@pytest.fixture(scope="module")
def mock(cache: Path, stamps: StampTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MockEngine]:
    with mock_engine(build(MOCK, cache), tmp_path_factory.mktemp("mock"), stamps.ids) as engine:
        yield engine


@pytest.fixture(scope="module")
def gateway(mock: MockEngine, stamps: StampTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    launcher = GatewayLauncher(mock.url, mock.port, tmp_path_factory.mktemp("gateway"), stamps.directory, CpuPlan())
    [found], missing = look_for([SYSTEMS["crossover-token"]], {})
    assert not missing
    with launcher.running(found) as running:
        yield running


def measure(client: Path, gateway: Gateway) -> Measurement:
    destination = Destination(gateway.port, gateway.system.wire, gateway.system.stop, gateway.pids)
    return run_client(client, destination, Load(8, tokens=60, warm_s=0.2, window_s=1, drain_s=10))


def test_an_id_is_the_stamp_it_stands_for(stamps: StampTokenizer) -> None:
    vocabulary = Tokenizer.from_file(str(stamps.directory / "tokenizer.json"))
    assert vocabulary.get_vocab_size() > 100_000
    first_time, first_place = stamps.ids.first_time, stamps.ids.first_place
    assert vocabulary.decode([first_time + 12_345, first_place + 678]) == "12345q0678"
    assert vocabulary.encode("12345").ids == [first_time + 12_345]


def test_a_long_prompt_has_about_the_length_asked_for(stamps: StampTokenizer, tmp_path: Path) -> None:
    path = tmp_path / "prompt.json"
    tokenizer.write_long_prompt(stamps, MODEL, 3000, path)
    vocabulary = Tokenizer.from_file(str(stamps.directory / "tokenizer.json"))
    text = path.read_text()
    assert text.count("########") >= 1
    assert 2900 < len(vocabulary.encode(text).ids) < 5000  # the JSON around it, and its escapes, are tokens too


def test_every_token_comes_through_the_gateway_in_its_place(client: Path, mock: MockEngine, gateway: Gateway) -> None:
    mock.set(PACE)
    measured = measure(client, gateway)
    assert measured.complaint is None
    assert measured.all_tokens == 60 * measured.streams_ended
    assert measured.cpu_s > 0
    # One token in eight holds the place and no time.
    assert 0.8 * measured.tokens < measured.delay_us.count < measured.tokens


@pytest.mark.parametrize(
    ("fault", "field"), [("drop", "lost"), ("swap", "reordered"), ("repeat", "reordered"), ("foreign", "foreign")]
)
def test_what_goes_wrong_with_ids_is_noticed(
    client: Path, mock: MockEngine, gateway: Gateway, fault: str, field: str
) -> None:
    mock.set(replace(PACE, fault=fault, every=5))  # tokens of both kinds
    measured = measure(client, gateway)
    assert getattr(measured, field) > 0
    assert measured.complaint

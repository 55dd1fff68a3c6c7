"""Observation as a pipe: what passes through it unchanged, and what a scrape says afterwards."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core import FinishReason, GenerateRequest, Policy, Prompt, Route, SamplingParams, TokenLogprob
from gateway.errors import BackendUnavailable, ContextLengthExceeded, GatewayError
from gateway.metrics import Metrics
from gateway.operator.gauges import RoutingCollector
from gateway.routing import PolicyChange
from gateway.routing.policies import Share, Threshold
from gateway.settings import ModelSettings, ProbeSettings
from tests.fakes.alone import make_fleet, make_roster, make_router
from tests.fakes.backend import ScriptedBackend, described
from tests.fakes.sink import RecordingSink
from tests.fakes.tally import make_tally
from tests.routing.conftest import Clock

POLICY = Threshold(low="triton", high="vllm", up=2, down=1, dwell_s=0)


class Scene:
    """Metrics over a router of two backends, with a clock that only a test moves."""

    def __init__(self, dry: Policy | None = None) -> None:
        backends = {name: ScriptedBackend(name) for name in ("triton", "vllm")}
        settings = ModelSettings("llama", Path(), described(backends), POLICY, dry)
        self.fleet = make_fleet(settings, backends, ProbeSettings())
        self.router = make_router([self.fleet])
        self.clock = Clock()
        self.metrics = Metrics(
            make_tally({"llama": list(backends)}), self.router.flows(), make_roster(), clock=self.clock
        )
        self.metrics.add(RoutingCollector(self.router.state))

    def request(self, run: str | None = None) -> GenerateRequest:
        return GenerateRequest("id", "llama", Prompt((1, 2, 3)), SamplingParams(max_tokens=9), (0,), run=run)

    def answer(self, ending: FinishReason | GatewayError | None, run: str | None = None) -> RecordingSink:
        """0.2 s to the first token, then two more in one call 0.1 s later, then `ending`, or a client that leaves."""
        sink = RecordingSink()
        with self.metrics.observe(self.request(run), Route("triton", "test"), sink) as observed:
            sink.call = observed  # type: ignore[assignment]  # marks that start() is over
            self.clock.now += 0.2
            observed.tokens([11])
            self.clock.now += 0.1
            observed.tokens([12, 13])
            if isinstance(ending, FinishReason):
                observed.finish(ending)
            elif ending is not None:
                observed.fail(ending)
        return sink

    def samples(self, *prefixes: str) -> dict[tuple[str, frozenset[str]], float]:
        """Every sample whose name starts so, by name and label values."""
        families = text_string_to_metric_families(self.metrics.render().decode())
        return {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith(tuple(prefixes)) and not sample.name.endswith("_created")
        }

    def value(self, name: str, *labels: str) -> float | None:
        return self.samples(name).get((name, frozenset(labels)))


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("ending", [FinishReason.STOP, FinishReason.LENGTH, BackendUnavailable("gone")])
def test_what_passes_through_is_unchanged(scene: Scene, ending: FinishReason | GatewayError) -> None:
    sink = scene.answer(ending)
    assert (sink.token_ids, sink.end) == ([11, 12, 13], ending)
    assert sink.breaches == []


def test_scores_pass_through_and_are_no_tokens(scene: Scene) -> None:
    sink = RecordingSink()
    prompt = [TokenLogprob(1, None), TokenLogprob(2, -0.5)]
    answer = [TokenLogprob(11, -0.25, ((11, -0.25), (12, -1.5)))]
    with scene.metrics.observe(scene.request(), Route("vllm", "test"), sink) as observed:
        sink.call = observed  # type: ignore[assignment]  # marks that start() is over
        observed.scores(prompt)
        assert (observed.first, observed.token_ids) == (None, [])  # nothing of the answer is there yet
        observed.scores(answer)
        observed.tokens([11])
        observed.finish(FinishReason.STOP)
    assert (sink.entries, sink.token_ids, sink.breaches) == ([*prompt, *answer], [11], [])
    assert scene.value("crossover_completion_tokens_total", "llama", "vllm") == 1


async def test_a_backends_stream_passes_through_while_it_is_measured(scene: Scene) -> None:
    backend = ScriptedBackend("vllm", [(1,), (2, 3), (4,), FinishReason.LENGTH])
    sink = RecordingSink()
    with scene.metrics.observe(scene.request(), Route("vllm", "test"), sink) as observed:
        sink.call = backend.start(scene.request(), observed)
        assert await sink.ended() is FinishReason.LENGTH
    assert (sink.token_ids, sink.breaches) == ([1, 2, 3, 4], [])
    assert scene.value("crossover_requests_total", "llama", "vllm", "length") == 1
    assert scene.value("crossover_completion_tokens_total", "llama", "vllm") == 4


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (BackendUnavailable("gone"), "backend_unavailable"),
        (None, "cancelled"),
    ],
)
def test_every_ending_is_counted_once_under_its_name(
    scene: Scene, ending: FinishReason | GatewayError | None, outcome: str
) -> None:
    scene.answer(ending)
    assert scene.samples("crossover_requests_total") == {
        ("crossover_requests_total", frozenset({"llama", "triton", outcome})): 1
    }
    assert scene.value("crossover_prompt_tokens_total", "llama", "triton") == 3
    assert scene.value("crossover_completion_tokens_total", "llama", "triton") == 3


def test_an_end_the_backend_does_not_know_of_is_counted_as_what_it_was(scene: Scene) -> None:
    with scene.metrics.observe(scene.request(), Route("vllm", "test"), RecordingSink()) as observed:
        observed.end("stop")  # a stop string matched
    assert scene.value("crossover_requests_total", "llama", "vllm", "stop") == 1
    assert scene.value("crossover_requests_total", "llama", "vllm", "cancelled") is None


def test_latencies_are_observed_once_in_seconds(scene: Scene) -> None:
    scene.answer(FinishReason.STOP)
    for name, total in (("ttft", 0.2), ("tpot", 0.05), ("e2e", 0.3)):
        assert scene.value(f"crossover_{name}_seconds_count", "llama", "triton") == 1
        assert scene.value(f"crossover_{name}_seconds_sum", "llama", "triton") == pytest.approx(total)


def test_latencies_start_when_the_request_arrived(scene: Scene) -> None:
    arrived = scene.clock.now - 1.0
    with scene.metrics.observe(scene.request(), Route("triton", "test"), RecordingSink(), arrived) as observed:
        observed.tokens([1])
        observed.finish(FinishReason.LENGTH)
    assert scene.value("crossover_ttft_seconds_sum", "llama", "triton") == pytest.approx(1.0)


def test_an_answer_of_one_token_has_no_tpot(scene: Scene) -> None:
    with scene.metrics.observe(scene.request(), Route("triton", "test"), RecordingSink()) as observed:
        observed.tokens([1])
        observed.finish(FinishReason.LENGTH)
    assert scene.value("crossover_tpot_seconds_count", "llama", "triton") is None
    assert scene.value("crossover_e2e_seconds_count", "llama", "triton") == 1


@pytest.mark.parametrize("ending", [None, BackendUnavailable("gone")])
def test_an_answer_cut_short_counts_for_ttft_only(scene: Scene, ending: GatewayError | None) -> None:
    scene.answer(ending)
    assert scene.value("crossover_ttft_seconds_count", "llama", "triton") == 1
    assert scene.value("crossover_e2e_seconds_count", "llama", "triton") is None
    assert scene.value("crossover_tpot_seconds_count", "llama", "triton") is None


def test_load_test_runs_are_kept_out_of_users_figures(scene: Scene) -> None:
    scene.answer(FinishReason.STOP, run="calibration-1")
    users = scene.samples("crossover_requests", "crossover_completion", "crossover_prompt", "crossover_ttft")
    assert users == {}
    assert scene.value("crossover_run_requests_total", "llama", "triton", "stop") == 1
    assert scene.value("crossover_run_completion_tokens_total", "llama", "triton") == 3


@dataclass
class Relayed:
    """What was seen of an answer on the relay lane."""

    first: float | None
    last: float
    events: int = 7
    status: int = 200
    usage: tuple[int, int] = (3, 5)
    finish_reason: str | None = "stop"


def test_a_relayed_answer_counts_by_what_was_seen_of_it(scene: Scene) -> None:
    scene.metrics.relayed(scene.request(), Route("vllm", "test"), 10.0, Relayed(first=10.2, last=11.0), "stop")
    assert scene.value("crossover_relay_events_total", "llama", "vllm") == 7
    assert scene.value("crossover_prompt_tokens_total", "llama", "vllm") == 3
    assert scene.value("crossover_completion_tokens_total", "llama", "vllm") == 5
    assert scene.value("crossover_ttft_seconds_sum", "llama", "vllm") == pytest.approx(0.2)
    assert scene.value("crossover_tpot_seconds_sum", "llama", "vllm") == pytest.approx(0.2)
    assert scene.value("crossover_e2e_seconds_sum", "llama", "vllm") == pytest.approx(1.0)


def test_a_relayed_answer_without_usage_has_events_and_no_tokens(scene: Scene) -> None:
    scene.metrics.relayed(scene.request(), Route("vllm", "test"), 10.0, Relayed(10.2, 11.0, usage=(0, 0)), "stop")
    assert scene.value("crossover_relay_events_total", "llama", "vllm") == 7
    assert scene.value("crossover_completion_tokens_total", "llama", "vllm") == 0


def test_a_relayed_answer_of_a_run_or_without_a_first_byte_has_no_latency(scene: Scene) -> None:
    scene.metrics.relayed(scene.request("run-1"), Route("vllm", "test"), 10.0, Relayed(first=10.2, last=11.0), "stop")
    scene.metrics.relayed(scene.request(), Route("vllm", "test"), 10.0, Relayed(first=None, last=10.0), "cancelled")
    assert scene.value("crossover_run_relay_events_total", "llama", "vllm") == 7
    assert scene.value("crossover_requests_total", "llama", "vllm", "cancelled") == 1
    assert scene.samples("crossover_ttft") == {}


def test_refusals_are_counted_by_code(scene: Scene) -> None:
    scene.metrics.refuse(ContextLengthExceeded("too long", param="messages"))
    assert scene.value("crossover_refused_total", "context_length_exceeded") == 1


def test_a_scrape_reads_the_ledger(scene: Scene) -> None:
    for health in scene.fleet.healths.values():
        health.is_ready = True
    with scene.fleet.lease(scene.request()), scene.fleet.lease(scene.request()):
        assert scene.samples("crossover_in_flight") == labelled("crossover_in_flight", triton=1, vllm=1)
        assert scene.samples("crossover_policy_side") == labelled("crossover_policy_side", triton=0, vllm=1)
        assert scene.value("crossover_policy_switches_total", "llama") == 1
    assert scene.samples("crossover_in_flight") == labelled("crossover_in_flight", triton=0, vllm=0)
    scene.fleet.healths["vllm"].doubt("it is away")
    assert scene.samples("crossover_backend_ready") == labelled("crossover_backend_ready", triton=1, vllm=0)


def test_a_scrape_shows_what_the_policy_on_trial_would_have_done(scene: Scene) -> None:
    assert scene.samples("crossover_dry") == {}
    tried = Scene(dry=Threshold("triton", "vllm", up=1, down=0))
    for health in tried.fleet.healths.values():
        health.is_ready = True
    tried.fleet.lease(tried.request()).close()
    shown = tried.metrics.render().decode()
    assert 'crossover_dry_choices_total{backend="triton",dry="vllm",model="llama"} 1.0' in shown
    assert 'crossover_dry_choices_total{backend="vllm",dry="triton",model="llama"} 0.0' in shown
    assert tried.value("crossover_dry_switches_total", "llama") == 1


def test_a_scrape_shows_the_policy_in_force(scene: Scene) -> None:
    assert policy_in(scene) == [2, 1, 1]
    scene.router.set_policy(PolicyChange(Threshold("triton", "vllm", up=9, down=7), by="test"))
    assert policy_in(scene) == [9, 7, 2]
    scene.router.set_policy(PolicyChange(Share("triton", "vllm", share=0.05), by="test"))
    assert policy_in(scene) == [None, None, 3]


def policy_in(scene: Scene) -> list[float | None]:
    return [scene.value(f"crossover_policy_{name}", "llama") for name in ("up", "down", "version")]


def labelled(name: str, **values: float) -> dict[tuple[str, frozenset[str]], float]:
    return {(name, frozenset({"llama", backend})): value for backend, value in values.items()}


def test_every_name_is_listed_in_the_documentation(scene: Scene) -> None:
    documentation = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    families: Iterable[str] = (
        family.name for family in text_string_to_metric_families(scene.metrics.render().decode())
    )
    missing = [name for name in families if name.startswith("crossover_") and f"`{name}" not in documentation]
    assert missing == []


def test_an_attempt_that_did_not_even_begin_is_under_way_no_more_and_not_recorded() -> None:
    scene = Scene()
    flow = scene.router.flows()["llama"]
    before = flow.words()
    observed = scene.metrics.observe(scene.request(), Route("vllm", "test"), RecordingSink())
    assert (flow.free["vllm"].streams, flow.free["vllm"].coming) == (1, 3)
    observed.drop()
    observed.end("stop")
    assert flow.words() == before
    assert not scene.samples("crossover_requests_total")

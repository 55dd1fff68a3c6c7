"""From records to medians, ratios, verdicts, a table and a plot: no sockets."""

from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadtest.lab.bench.cpus import CpuPlan
from loadtest.lab.bench.folder import BenchFolder
from loadtest.lab.bench.session import find_places
from loadtest.lab.bench.systems import SYSTEMS, Site
from loadtest.lab.figures import plot, report
from loadtest.lab.figures.claims import Claim, Pairs, claims
from loadtest.lab.figures.machine import Machine
from loadtest.lab.figures.measurement import Measurement, Record, Spread, parse_measurement
from loadtest.lab.figures.scenarios import SCENARIOS, Load, Scenario, plan, quicken
from loadtest.lab.figures.summary import Summary, cpu_us_per_request, cpu_us_per_token, delay_p50_us
from loadtest.mock_engine.engine import Pace
from loadtest.mock_engine.process import CannotMeasure

FAULTS = ("errors", "unfinished", "malformed", "foreign", "lost", "reordered")
BASE: dict[str, object] = {"window_s": 2.0, "requests": 0, "tokens": 1000, "reads": 900, "first_error": ""}
BASE |= {"cpu_s": 0.5, "mock_cpu_s": 0.1, "client_cpu_s": 0.1, "idle_rss_kib": 1000.0, "peak_rss_kib": 2000.0}
BASE |= dict.fromkeys(FAULTS, 0)
HELD = "256 paced streams: CPU per token / nginx"


def measured(**changes: object) -> Measurement:
    return parse_measurement(orjson.dumps(BASE | changes))


def record(scenario: str, system: str, repeat: int = 0, complaint: str | None = None, **changes: object) -> Record:
    return Record(scenario, system, repeat, complaint, measured(**changes))


def claim(number: str, words: str) -> Claim:
    [found] = [each for each in claims() if each.number == number and words in each.text]
    return found


def test_a_median_is_over_repeats_and_a_ratio_is_of_medians() -> None:
    records = [record("pace256", "ours", n, cpu_s=cpu) for n, cpu in enumerate((0.9, 0.1, 0.2))]
    records += [record("pace256", "nginx", n, cpu_s=cpu) for n, cpu in enumerate((0.4, 0.4, 1.0))]
    summary = Summary.of(records)
    assert summary.median("pace256", "ours", cpu_us_per_token) == pytest.approx(200)
    assert summary.ratio("pace256", cpu_us_per_token, "ours", "nginx") == pytest.approx(0.5)
    assert summary.repeats("pace256", "ours") == 3
    assert cpu_us_per_request(measured()) is None
    assert cpu_us_per_request(measured(requests=100)) == pytest.approx(5000)


def test_pairs_are_within_a_repeat_so_a_machine_that_slows_down_changes_nothing() -> None:
    held = claim("1", HELD)
    slower = (1.0, 4.0, 2.0)
    records = [record("pace256", "crossover-relay", n, cpu_s=0.9 * by) for n, by in enumerate(slower)]
    records += [record("pace256", "nginx", n, cpu_s=by) for n, by in enumerate(slower)]
    assert str(Pairs.of(held, Summary.of_each_repeat(records))) == "0.90 ± 0.00"
    records[0] = record("pace256", "crossover-relay", 0, cpu_s=0.9 * 1.331)
    pairs = Pairs.of(held, Summary.of_each_repeat(records)) or Pairs(0, 0)
    assert pairs.mean == pytest.approx(0.9 * 1.1)
    assert pairs.error == pytest.approx(0.0953, abs=1e-4)  # ln 1.331 / 3, for the other two agree


def test_pairs_take_three_repeats_and_a_ratio() -> None:
    held = claim("1", HELD)
    both = [record("pace256", name, n) for n in range(3) for name in ("crossover-relay", "nginx")]
    assert Pairs.of(held, Summary.of_each_repeat(both)) is not None
    assert Pairs.of(held, Summary.of_each_repeat(both[:-1])) is None
    assert Pairs.of(claim("8", "token lane"), Summary.of_each_repeat(both)) is None


def test_a_record_with_a_complaint_counts_nowhere() -> None:
    summary = Summary.of([record("pace256", "ours", complaint="1 tokens lost", lost=1)])
    assert summary.median("pace256", "ours", cpu_us_per_token) is None
    assert summary.ratio("pace256", cpu_us_per_token, "ours", "nginx") is None
    assert [each.complaint for each in summary.void] == ["1 tokens lost"]


def test_a_delay_is_added_to_that_without_a_gateway() -> None:
    spread = {"count": 9, "p50": 50.0}
    records = [record("pace256", "direct", delay_us=spread)]
    records.append(record("pace256", "ours", delay_us=spread | {"p50": 170.0}))
    assert Summary.of(records).added("pace256", delay_p50_us, "ours") == 120


@pytest.mark.parametrize(
    ("number", "words", "rival", "cpu_s", "verdict"),
    [
        ("1", HELD, ("pace256", "nginx"), 0.9, "holds"),
        ("1", HELD, ("pace256", "nginx"), 1.0, "holds"),
        ("1", HELD, ("pace256", "nginx"), 1.1, "missed"),
        ("5", "CPU per token", ("pace64", "litellm"), 0.08, "holds"),  # at least twelve times
        ("5", "CPU per token", ("pace64", "litellm"), 0.09, "missed"),
    ],
)
def test_a_promise_is_held_to_its_bound(
    number: str, words: str, rival: tuple[str, str], cpu_s: float, verdict: str
) -> None:
    held = claim(number, words)
    records = [record(rival[0], "crossover-relay", cpu_s=cpu_s), record(*rival, cpu_s=1.0)]
    assert held.verdict(held.measure(Summary.of(records))) == verdict


def test_a_promise_nobody_measured_is_not_kept() -> None:
    nothing = Summary.of([])
    assert {each.verdict(each.measure(nothing)) for each in claims()} == {"not measured"}


def test_the_soak_adds_memory_and_its_lost_tokens_are_a_missed_promise_though_its_figures_do_not_count() -> None:
    added = claim("7", "token lane, 2,000 streams: memory")
    soak = record("soak", "crossover-token", idle_rss_kib=100_000, peak_rss_kib=100_000 + 2000 * 30)
    assert added.measure(Summary.of([soak])) == pytest.approx(30 * 1.024)
    broken = claim("7", "relay, 2,000 streams for a minute")
    value = broken.measure(Summary.of([record("soak", "crossover-relay", complaint="lost", lost=2, reordered=1)]))
    assert (value, broken.verdict(value)) == (3, "missed")


def test_every_promise_has_scenarios_and_systems_that_exist() -> None:
    """One measurement of every system in every scenario leaves nothing unmeasured but Triton's rival."""
    records = []
    for scenario in SCENARIOS.values():
        for number, system in enumerate(scenario.systems):
            spread = {"count": 9, "p50": 10.0 + number, "p90": 20.0, "p99": 30.0 + number, "max": 40.0}
            spreads = dict.fromkeys(("delay_us", "gap_us", "lag_us", "latency_us"), spread)
            records.append(Record(scenario.name, system, 0, None, measured(requests=100, **spreads)))
    summary = Summary.of(records)
    assert [each.number for each in claims() if each.measure(summary) is None] == ["4"]
    assert {name for scenario in SCENARIOS.values() for name in scenario.systems} == set(SYSTEMS)


def test_repeats_are_interleaved_and_begin_with_another_system_each_time() -> None:
    one = Scenario("one", "", Pace(), Load(1), ("a", "b", "c"))
    once = Scenario("once", "", Pace(), Load(1), ("c", "a"), repeats=1)
    turns = [f"{turn.repeat} {turn.scenario.name} {turn.system}" for turn in plan([one, once], ["a", "b", "c"], 2)]
    assert turns == ["0 one a", "0 one b", "0 one c", "0 once a", "0 once c", "1 one b", "1 one c", "1 one a"]


def test_the_clients_output_is_read_and_nothing_else_is() -> None:
    spread = {"count": 5, "p50": 1.5, "p90": 2, "p99": 3, "max": 4}
    parsed = measured(requests=3, delay_us=spread, ttft_us={"count": 0})
    assert (parsed.requests, parsed.delay_us, parsed.ttft_us) == (3, Spread(5, 1.5, 2, 3, 4), Spread())
    assert parsed.complaint is None
    for other in ("{}", "usage: load"):
        with pytest.raises(ValueError, match=r"Field required|Invalid JSON"):
            parse_measurement(other)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        *(({field: 2}, "2 ") for field in FAULTS),
        ({"tokens": 0, "requests": 0}, "nothing was answered"),
    ],
)
def test_any_fault_voids_a_measurement(changes: dict[str, int], complaint: str) -> None:
    assert (measured(**changes).complaint or "").startswith(complaint)


def run_of(*records: Record) -> report.Run:
    machine = Machine("a CPU", 2, 8.0, "6.1", "Debian", "3.11")
    about = report.About(machine, {"nginx": "1.22"}, 3, 1.5, ["smg is missing"])
    return report.Run(Summary.of(records), tuple(claims()), about, Summary.of_each_repeat(records))


def test_the_report_has_every_promise_and_every_system() -> None:
    relay, broken = record("pace256", "crossover-relay", cpu_s=0.4), record("ns16", "smg", complaint="x")
    run = run_of(record("pace256", "nginx"), relay, broken)
    text = report.render(run)
    promises = [line for line in text.splitlines() if "| holds |" in line or "| not measured |" in line]
    assert len(promises) == len(list(claims()))
    assert "| holds | 0.80 x | - | ≤ 1.00 x |" in text
    assert "| crossover-relay | 500 | 400.00 | 0.80 |" in text
    assert "smg is missing" in text
    assert "ns16, smg, repeat 1 does not count: x" in text
    assert len(report.claims_table(run, only_measured=True).splitlines()) == 2 + 1
    assert "Other processes" not in text
    assert "used 60 % of a CPU" in report.render(run_of(record("pace256", "nginx", other_cpu_s=1.2)))


def test_a_run_can_be_reported_on_again_from_its_folder(tmp_path: Path) -> None:
    folder = BenchFolder.create(tmp_path)
    run = run_of(record("pace256", "nginx"))
    folder.write_about(run.about)
    folder.append(record("pace256", "nginx"))
    folder.append(Record("triton", "grpc.aio", 1, "broken", extra={"tokens_per_s": 2.0}))
    again = folder.read()
    assert report.render(again).startswith(report.render(run).partition("Left out")[0])
    assert [each.complaint for each in again.summary.void] == ["broken"]
    folder.write_report(again)
    assert (folder.path / "report.md").exists()
    with pytest.raises(CannotMeasure, match="not the folder of a run"):
        BenchFolder(tmp_path).read()


def test_the_plot_has_a_line_for_each_system_that_was_measured() -> None:
    records = [record(f"pace{n}", system) for n in (64, 256) for system in ("nginx", "crossover-relay")]
    drawing = ElementTree.fromstring(plot.render(Summary.of(records)))
    assert len(drawing.findall(".//{*}polyline")) == 2
    assert len(drawing.findall(".//{*}circle")) == 4
    assert [text.text for text in drawing.findall(".//{*}text")][-2:] == ["crossover-relay 500.0", "nginx 500.0"]
    assert plot.render(Summary.of([])) == ""


def test_gateway_and_engine_have_cpus_of_their_own_where_there_are_enough() -> None:
    assert CpuPlan.among([4, 5]) == CpuPlan((4,), (5,), (5,))
    assert CpuPlan.among([0, 1, 2]).of(workers=2) == (1, 2)
    assert CpuPlan.among([0, 1, 2]).of(workers=1) == (1,)
    assert CpuPlan.among([0, 1, 2, 3, 4]) == CpuPlan((0, 3), (1,), (1, 2))
    assert CpuPlan.among([3]).complaint
    assert CpuPlan.among([0, 1]).complaint is None


def test_commands_are_found_in_the_cache_and_where_they_are_given(tmp_path: Path) -> None:
    smg = tmp_path / "peers/smg/bin/smg"
    smg.parent.mkdir(parents=True)
    smg.touch()
    found = find_places({}, tmp_path)
    assert SYSTEMS["smg"].find(found) == smg
    given = tmp_path / "elsewhere"
    given.touch()
    assert SYSTEMS["smg"].find(find_places({"smg": given}, tmp_path)) == given
    assert SYSTEMS["smg"].find({"smg": tmp_path / "gone"}) is None


def test_quick_windows_are_shorter() -> None:
    for scenario in SCENARIOS.values():
        assert quicken(scenario).load.longest_s < scenario.load.longest_s


@pytest.mark.parametrize(("name", "listens"), [("nginx", "listen 127.0.0.1:81 "), ("haproxy", "bind 127.0.0.1:81 ")])
def test_a_servers_configuration_has_its_port_and_the_engines_address(tmp_path: Path, name: str, listens: str) -> None:
    launch = SYSTEMS[name].launch
    assert launch is not None
    *_, path = launch(Site(Path(name), 81, "http://127.0.0.1:82", tmp_path)).argv
    text = Path(path).read_text()
    assert listens in text
    assert "server mock 127.0.0.1:82 " in text or "server 127.0.0.1:82;" in text
    assert "$" not in text

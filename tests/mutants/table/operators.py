"""What operators go by: figures, the configuration, the key."""

from dataclasses import replace
from typing import Any

from tests.mutants.mutant import Mutant, reads, returns

METRICS = "gateway.metrics.registry:Metrics"
LOAD = "gateway.configuration.load"

FIGURES = "tests/metrics/test_metrics.py::test_"
CONFIGURED = "tests/settings/test_settings.py::test_"
OPERATED = "tests/operator/test_operator.py::test_"


def record_as_users(was: Any) -> Any:  # Any: a method of Metrics
    def record(self: Any, seen: Any, outcome: str) -> None:
        seen.request = replace(seen.request, run=None)
        was(self, seen, outcome)

    return record


MUTANTS = (
    Mutant("runs are counted apart from users", f"{METRICS}.record", record_as_users,
        (f"{FIGURES}load_test_runs_are_kept_out_of_users_figures",)),
    Mutant("relayed runs are counted apart from users", f"{METRICS}.relayed",
        lambda was: lambda self, request, *seen: was(self, replace(request, run=None), *seen),
        (f"{FIGURES}a_relayed_answer_of_a_run_or_without_a_first_byte_has_no_latency",)),
    Mutant("an attempt is counted once", "gateway.metrics.observation:Observation.end",
        lambda _was: lambda self, outcome: self._recorder.record(self, outcome),
        (f"{FIGURES}every_ending_is_counted_once_under_its_name",)),
    Mutant("latencies start when the request arrived", f"{METRICS}.observe",
        lambda was: lambda self, request, route, sink, arrived=None, before=None: was(self, request, route, sink),
        (f"{FIGURES}latencies_start_when_the_request_arrived",)),
    Mutant("a configuration that contradicts itself is refused", f"{LOAD}:_find_contradictions", returns(()),
        (f"{CONFIGURED}a_mistake_is_named_by_its_key_path",)),
    Mutant("a threshold that makes no sense is refused", "gateway.routing.policies.threshold:Threshold.problems",
        returns(()), ("tests/routing/test_router.py::test_a_policy_that_makes_no_sense_changes_nothing[edits2-down]",)),
    Mutant("the environment overrides the file", f"{LOAD}:_overrides", returns({}),
        (f"{CONFIGURED}the_environment_overrides_the_file",)),
    Mutant("an operator key keeps others from the admin routes", "gateway.operator.key:OperatorKey.__call__",
        lambda _was: lambda _self, authorization="": None,
        (f"{OPERATED}with_an_operator_key_admin_routes_ask_for_it",)),
    Mutant("a gateway without an engine is not ready", "gateway.routing.states:ModelState.is_ready", reads(True),
        (f"{OPERATED}ready_needs_one_backend_of_every_model_and_names_those_without",)),
)  # fmt: skip

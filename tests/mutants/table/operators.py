"""What operators go by: figures, the configuration, the key."""

from dataclasses import replace
from typing import Any

from gateway.access import KeyFileUnreadable, Scope
from tests.mutants.mutant import Mutant, reads, returns

METRICS = "gateway.metrics.registry:Metrics"
LOAD = "gateway.configuration.load"
OPERATOR = "gateway.operator.entrance:OperatorEntrance"

FIGURES = "tests/metrics/test_metrics.py::test_"
CONFIGURED = "tests/settings/test_settings.py::test_"
OPERATED = "tests/operator/test_operator.py::test_"
KEYS = "tests/serving/test_keys.py::test_"
FILED = "tests/access/test_key_file.py::test_"


def record_as_users(was: Any) -> Any:  # Any: a method of Metrics
    def record(self: Any, seen: Any, outcome: str) -> None:
        seen.request = replace(seen.request, run=None)
        was(self, seen, outcome)

    return record


def only_valid(was: Any) -> Any:  # Any: a method of Keyring
    def put_in_force(self: Any, keys: Any) -> None:
        was(self, tuple(key for key in keys if key.revoked is None))

    return put_in_force


def reads_none(was: Any) -> Any:  # Any: a method of KeyFile
    def read(self: Any) -> Any:
        try:
            return was(self)
        except KeyFileUnreadable:
            return ()

    return read


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
    Mutant("an operator key, a host and a page keep others from the admin routes", f"{OPERATOR}._check", returns(None),
        (f"{OPERATED}with_an_operator_key_admin_routes_ask_for_it",
         f"{KEYS}a_page_from_elsewhere_changes_no_policy_reads_no_state_and_generates_nothing")),
    Mutant("a key that has ended lets nobody in", "gateway.access.key:Key.is_valid", returns(True),
        (f"{FILED}a_new_key_is_seen_and_a_revoked_one_is_gone",
         f"{FILED}a_key_ends_when_it_expires_although_the_file_stays")),
    Mutant("a key does what its scopes say", "gateway.access.key:include", returns(frozenset(Scope)),
        (f"{FILED}a_scope_includes_what_it_needs", f"{KEYS}with_keys_each_route_asks_for_its_scope")),
    Mutant("the last key's end opens nothing", "gateway.access.keyring:Keyring._put_in_force", only_valid,
        (f"{FILED}a_new_key_is_seen_and_a_revoked_one_is_gone",)),
    Mutant("keys that cannot be read stay as they were", "gateway.access.key_file:KeyFile.read", reads_none,
        (f"{FILED}keys_that_cannot_be_read_are_an_error_that_names_the_file_and_leave_it_there",)),
    Mutant("a page from elsewhere is refused", "gateway.access.hosts:OwnHosts._is_same", returns(True),
        ("tests/access/test_hosts.py::test_pages",)),
    Mutant("a host of another name is refused", "gateway.access.hosts:OwnHosts._is_own_name", returns(True),
        ("tests/access/test_hosts.py::test_foreign_hosts",)),
    Mutant("a gateway without an engine is not ready", "gateway.routing.states:ModelState.is_ready", reads(True),
        (f"{OPERATED}ready_needs_one_backend_of_every_model_and_names_those_without",)),
)  # fmt: skip

"""What operators go by: figures, the configuration, the key."""

import time
from dataclasses import replace
from typing import Any

from gateway.access import KeyFileUnreadable, Scope
from gateway.access.meter import AT, REQUEST_LIMIT, REQUESTS, TOKENS
from tests.mutants.mutant import Mutant, becomes, reads, returns

METRICS = "gateway.metrics.registry:Metrics"
LOAD = "gateway.configuration.load"
OPERATOR = "gateway.operator.entrance:OperatorEntrance"

FIGURES = "tests/metrics/test_metrics.py::test_"
CONFIGURED = "tests/settings/test_settings.py::test_"
OPERATED = "tests/operator/test_operator.py::test_"
KEYS = "tests/serving/test_keys.py::test_"
FILED = "tests/access/test_key_file.py::test_"
METER = "gateway.access.meter"
METERED = "tests/access/test_meter.py::test_"
LIMITED = "tests/serving/test_limits.py::test_"


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


def fails_to_open(_was: Any) -> Any:  # Any: a function
    def open_file(_folder: Any) -> Any:
        raise OSError

    return open_file


def counts_time_back(was: Any) -> Any:  # Any: a method of a row
    def drain(self: Any) -> Any:
        elapsed = time.time_ns() // 10**6 - self.words[AT]
        if elapsed < 0:
            self.words[REQUESTS] -= elapsed * self.words[REQUEST_LIMIT]
        return was(self)

    return drain


def keeps_stale(was: Any) -> Any:  # Any: a method of a row
    def go_by(self: Any, limits: Any) -> Any:
        self.drain()
        kept = self.words[REQUESTS], self.words[TOKENS]
        was(self, limits)
        self.words[REQUESTS], self.words[TOKENS] = kept

    return go_by


def counts_ids(_was: Any) -> Any:  # Any: a method of TokenAttempt
    def count(self: Any) -> tuple[int, int]:
        return self._group.prompt_tokens, sum(len(seen.token_ids) for seen, _ in self._running)

    return count


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
    Mutant("a key stays within its limits", "gateway.access.limits:check", returns(None),
        (f"{METERED}requests_a_minute_are_exact_over_two_processes",
         f"{METERED}a_day_has_its_tokens_and_ends_at_midnight",
         f"{LIMITED}each_api_has_its_own_form_of_the_error")),
    Mutant("limits are counted over all workers", f"{METER}:_open_file", fails_to_open,
        (f"{METERED}requests_a_minute_are_exact_over_two_processes",
         f"{METERED}counts_outlive_their_processes_and_the_file_is_private")),
    Mutant("tokens are reserved when a request comes in", f"{METER}:_Row.estimate", returns(0),
        (f"{METERED}tokens_are_reserved_on_entry_and_settled_at_the_end",)),
    Mutant("a client that leaves gives its place back", f"{METER}:Meter.settle", returns(None),
        (f"{LIMITED}in_flight_is_exact_and_a_client_that_leaves_gives_its_place_back",)),
    Mutant("short answers do not let in hundreds at once", f"{METER}:UNKNOWN", becomes(0),
        (f"{METERED}a_few_short_answers_do_not_let_in_hundreds_at_once",)),
    Mutant("a false usage locks no key for days", f"{METER}:MOST_MINUTES", becomes(10**6),
        (f"{METERED}a_false_usage_locks_no_key_for_days",)),
    Mutant("what a killed worker had under way comes back", f"{METER}:Meter.sweep", returns(None),
        (f"{METERED}what_a_killed_process_had_under_way_comes_back",)),
    Mutant("a clock that goes back locks no key out", f"{METER}:_Row.drain", counts_time_back,
        (f"{METERED}a_clock_that_goes_back_locks_nobody_out",)),
    Mutant("a minute's limit that is taken away or lowered leaves nothing stale", f"{METER}:_Row.go_by", keeps_stale,
        (f"{METERED}a_minute_whose_limit_was_taken_away_begins_anew",
         f"{METERED}a_limit_that_was_lowered_locks_its_key_for_a_minute_at_most")),
    Mutant("a key asks for its models alone", "gateway.access.limits:Limits.allows", returns(True),
        (f"{LIMITED}only_allowed_models_are_shown_and_answer",)),
    Mutant("a key has no priority beyond its own", "gateway.serving.restraint:restrain_work",
        lambda _was: lambda work, body, limits: work, (f"{LIMITED}a_priority_beyond_the_keys_is_lowered",)),
    Mutant("no priority beyond its key's goes on to an engine", "gateway.serving.restraint:restrain_body",
        lambda _was: lambda body, document, limits, *, takes_priority: (body, 0),
        (f"{LIMITED}a_relayed_answer_counts_by_its_servers_usage_or_else_by_its_events",)),
    Mutant("no second value of a field goes on to an engine", "gateway.serving.endpoints:make_plain",
        lambda _was: lambda body, document: body,
        (f"{LIMITED}a_server_gets_no_field_twice_and_no_query_from_a_key_with_limits",)),
    Mutant("no priority beyond its key's goes on in a header", "gateway.serving.restraint:restrain_lines",
        lambda _was: lambda lines, limits: lines,
        (f"{LIMITED}a_relayed_answer_counts_by_its_servers_usage_or_else_by_its_events",)),
    Mutant("the largest limit of a relayed body is reserved", "gateway.serving.restraint:read_token_limit",
        lambda _was: lambda document: document.get("max_completion_tokens"),
        (f"{LIMITED}the_largest_limit_of_a_relayed_body_is_reserved",)),
    Mutant("a relayed prompt counts where no usage is known", "gateway.serving.relay_lane:BYTES", becomes(10**9),
        (f"{LIMITED}a_relayed_answer_counts_by_its_servers_usage_or_else_by_its_events",
         f"{LIMITED}a_whole_relayed_answer_counts_too_where_its_usage_is_unknown")),
    Mutant("answers show what is left of a limit", "gateway.access.limits:describe", returns(()),
        (f"{METERED}header_fields", f"{LIMITED}an_answer_has_openais_headers_and_a_refusal_too")),
    Mutant("usage is what clients were told", "gateway.serving.token_lane:TokenAttempt.count", counts_ids,
        (f"{LIMITED}usage_adds_up_to_what_clients_were_told",)),
    Mutant("usage is counted by key and day", "gateway.access.usage:UsageLog.count", returns(None),
        ("tests/access/test_usage.py::test_several_workers_add_to_the_same_day",)),
    Mutant("refused operators are reported once a second", "gateway.operator.entrance:REPORT_S", becomes(0.01),
        (f"{OPERATED}refused_attempts_are_audited_by_their_number_once_a_second",)),
    Mutant("a page from elsewhere is refused", "gateway.access.hosts:OwnHosts._is_same", returns(True),
        ("tests/access/test_hosts.py::test_pages",)),
    Mutant("a host of another name is refused", "gateway.access.hosts:OwnHosts._is_own_name", returns(True),
        ("tests/access/test_hosts.py::test_foreign_hosts",)),
    Mutant("a gateway without an engine is not ready", "gateway.routing.states:ModelState.is_ready", reads(True),
        (f"{OPERATED}ready_needs_one_backend_of_every_model_and_names_those_without",)),
)  # fmt: skip

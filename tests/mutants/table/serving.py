"""The spine and its lanes: retries, leases, replies, keep-alive, guides, shared threads, own header fields."""

import re
from collections import Counter
from typing import Any

from gateway.errors import BackendError, BackendUnavailable, InternalError
from gateway.serving.token_lane import ALIVE
from tests.mutants.mutant import Mutant, becomes, changes, reads, returns

DISPATCH = "gateway.serving.dispatch:Dispatch"
REPLY = "gateway.serving.reply:Reply"
TOKENS = "gateway.serving.token_lane:TokenAttempt"
RELAY = "gateway.serving.relay_lane"
GUIDES = "gateway.serving.guide_checks"
OFFLOAD = "gateway.serving.offload"
OWN = "gateway.serving.own_headers"

RETRIED = "tests/serving/test_retry.py::test_"
CHATS = "tests/serving/test_chat.py::test_"
CHOICES = "tests/serving/test_choices.py::test_"
ERRORS = "tests/serving/test_errors.py::test_"
SILENT = "tests/serving/test_keep_alive.py::test_"
RELAYED = "tests/serving/test_relay_lane.py::test_"
TRIED = "tests/serving/test_guide_checks.py::test_"
SHARED = "tests/serving/test_offload.py::test_"
HEADERS = "tests/serving/test_headers.py::test_"


def retry_twice(_was: Any) -> Any:  # Any: a method of Dispatch
    tries: Counter[object] = Counter()

    def may_retry(self: Any, _work: object, error: Exception | None) -> bool:
        tries[self] += 1
        return tries[self] <= 2 and isinstance(error, BackendUnavailable)

    return may_retry


def release_early(was: Any) -> Any:  # Any: as above
    def release(self: Any, work: object, lease: Any, error: Exception | None) -> None:
        lease.close()
        was(self, work, lease, error)

    return release


MUTANTS = (
    # Dispatch
    Mutant("a request that has not begun is tried on another backend", f"{DISPATCH}._may_retry", returns(False),
        (f"{RETRIED}a_request_that_has_not_begun_is_answered_by_the_other_backend",)),
    Mutant("a retry is the only one", f"{DISPATCH}._may_retry", retry_twice, (f"{RETRIED}it_is_tried_once_only",)),
    Mutant("no retry once the reply has begun", f"{DISPATCH}._may_retry",
        lambda _was: lambda self, _work, error: not self._avoid and isinstance(error, BackendUnavailable),
        (f"{CHOICES}a_stream_whose_first_choice_has_begun_is_not_tried_elsewhere",)),
    Mutant("no retry of a pinned request", f"{DISPATCH}._may_retry",
        lambda _was: lambda self, _work, error: not self._avoid and isinstance(error, BackendUnavailable),
        (f"{RETRIED}a_pinned_request_stays_where_it_was_sent",)),
    Mutant("no retry after an error of an engine that has the request", f"{DISPATCH}._may_retry",
        lambda _was: lambda self, _work, error: not self._avoid and isinstance(error, BackendError),
        (f"{RETRIED}other_errors_are_not_tried_elsewhere",)),
    Mutant("an answer is counted before its lease is closed", f"{DISPATCH}._release", release_early,
        (f"{CHATS}an_answer_is_counted_before_its_place_is_free",)),
    Mutant("a fault of the gateway's own is a 500", f"{DISPATCH}._guard",
        changes(lambda error: BackendError("It failed.") if isinstance(error, InternalError) else error),
        (f"{ERRORS}a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",)),
    Mutant("a client that leaves frees its place and its engine", f"{DISPATCH}.left", returns(None),
        ("tests/client_http/test_disconnect.py::test_slot_is_freed_when_the_official_client_closes_its_stream",)),
    Mutant("a backend that is lost in an answer is down at once", "gateway.routing.router:Router.mark_unavailable",
        returns(None), (f"{RETRIED}a_backend_lost_in_the_middle_is_marked_at_once",)),
    Mutant("a backend that is full is not down", "gateway.errors:BackendFull.is_down", becomes(True),
        (f"{RETRIED}a_full_backend_is_not_taken_for_a_dead_one",)),
    # The reply
    Mutant("an error before the first frame is a status", f"{REPLY}.send_error",
        lambda _was: lambda self, _error: self.exchange.abort(),
        (f"{ERRORS}an_error_before_the_first_frame_is_a_status",)),
    Mutant("an error in a stream is an event", f"{REPLY}.send_error",
        lambda was: lambda self, error: self.exchange.abort() if self.has_begun else was(self, error),
        (f"{ERRORS}an_error_after_two_tokens_of_a_stream_is_its_last_event",)),
    Mutant("an answer that is cut within an event is broken off", f"{RELAY}:RelayAttempt.fail",
        lambda was: lambda self, error, *, may_append=False: was(self, error, may_append=True),
        (f"{RELAYED}an_engine_that_goes_away_in_the_middle_cuts_the_answer",)),
    Mutant("an answer says which backend it is from, and why", f"{REPLY}._own_lines",
        changes(lambda lines: lines.partition(b"\r\n")[0]),
        (f"{HEADERS}every_answer_says_where_it_came_from_and_why",)),
    # The token lane
    Mutant("a stop string ends the engine's call", f"{TOKENS}.end",
        lambda _was: lambda self, _error: self._running.clear(),
        (f"{CHATS}a_stop_string_over_token_borders_ends_the_answer_and_the_engine_call",)),
    Mutant("a silent stream is kept alive", f"{TOKENS}._write_comment", returns(None),
        (f"{SILENT}a_stream_that_has_begun_gets_a_comment_for_each_silent_while",)),
    Mutant("no keep-alive before the first token, unless the operator commits to it", f"{TOKENS}._write_comment",
        lambda _was: lambda self: self.begin_reply(ALIVE),
        (f"{SILENT}nothing_is_sent_before_the_first_token_so_that_errors_keep_their_status",)),
    # The relay lane
    Mutant("a relayed answer counts by its outcome", f"{RELAY}:_outcome", returns("stop"),
        (f"{RELAYED}what_one_engine_cannot_answer_another_does",)),
    Mutant("what a relayed engine refuses counts as refused", f"{RELAY}:_outcome",
        changes(lambda outcome: "stop" if outcome == "refused" else outcome),
        (f"{RELAYED}an_engines_own_error_reaches_the_official_client",)),
    Mutant("a slow client holds its engine up", f"{RELAY}:RelayAttempt.pause", returns(None),
        (f"{RELAYED}a_slow_client_holds_the_engine_up_and_gets_every_byte",)),
    # Guides
    Mutant("a guide that no answer can be held to is refused", f"{GUIDES}:Trial.find_fault", returns(""),
        (f"{TRIED}a_guide_whose_client_has_left_is_not_tried_unless_another_waits_for_its_verdict",)),
    Mutant("a guide whose client has left is not tried", f"{GUIDES}:GuideChecks._find_fault",
        lambda was: lambda self, guide, _has_left, limit_s: was(self, guide, lambda: False, limit_s),
        (f"{TRIED}a_guide_whose_client_has_left_is_not_tried_unless_another_waits_for_its_verdict",)),
    # Work on threads
    Mutant("threads are shared fairly among clients", f"{OFFLOAD}:Offload._choose",
        lambda _was: lambda self: next(
            (flow for flow in self._flows.values() if flow.jobs and self.working < self._threads), None),
        (f"{SHARED}one_client_waits_for_another_in_turn",)),
    Mutant("long work leaves a thread free", f"{OFFLOAD}:_Job.is_long", reads(False),
        (f"{SHARED}long_work_leaves_a_thread_free",)),
    Mutant("what waits for a thread is bounded", f"{OFFLOAD}:Offload.__init__",
        lambda was: lambda self, threads=2, max_waiting=32: was(self, threads, 1 << 40),
        (f"{SHARED}one_too_many_is_refused_at_once_and_the_others_are_not_disturbed",)),
    # Header fields of its own
    Mutant("a pin needs the operator's key", f"{OWN}:read_pin", lambda was: lambda head, _operator_key: was(head, None),
        (f"{HEADERS}with_an_operator_key_only_operators_pin",)),
    Mutant("a run id that could not be a label is refused", f"{OWN}:RUN_FORM", becomes(re.compile(r".*", re.DOTALL)),
        (f"{HEADERS}a_run_id_is_what_a_label_may_be",)),
    Mutant("request ids differ", f"{OWN}:RequestIds.mint", returns("0" * 32),
        (f"{HEADERS}request_ids_are_ours_and_differ",)),
)  # fmt: skip

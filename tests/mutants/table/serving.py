"""The spine and its lanes: retries, leases, replies, keep-alive, guides, shared threads, own header fields."""

import asyncio
import re
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

from gateway.errors import BackendError, BackendUnavailable, InternalError
from gateway.serving.token_lane import ALIVE
from tests.mutants.mutant import Mutant, becomes, changes, reads, returns

DISPATCH = "gateway.serving.dispatch:Dispatch"
LOSSES = "gateway.serving.loss:Losses"
REPLY = "gateway.serving.reply:Reply"
TOKENS = "gateway.serving.token_lane:TokenAttempt"
RELAY = "gateway.serving.relay_lane"
CONTINUED = "gateway.serving.continuation"
GUIDES = "gateway.serving.guide_checks"
OFFLOAD = "gateway.serving.offload"
OWN = "gateway.serving.own_headers"
QUARANTINE = "gateway.routing.quarantine:Quarantine"

MOVED = "tests/serving/test_moves.py::test_"
RETRIED = "tests/serving/test_retry.py::test_"
FETCHED = "tests/backends/test_http1.py::test_"
POISONED = "tests/serving/test_poison.py::test_"
QUEUED = "tests/serving/test_queue.py::test_"
WAITING = "tests/routing/test_waiting.py::test_"
EJECTED = "tests/serving/test_ejection.py::test_"
CHATS = "tests/serving/test_chat.py::test_"
CHOICES = "tests/serving/test_choices.py::test_"
ERRORS = "tests/serving/test_errors.py::test_"
SILENT = "tests/serving/test_keep_alive.py::test_"
RELAYED = "tests/serving/test_relay_lane.py::test_"
TRIED = "tests/serving/test_guide_checks.py::test_"
SHARED = "tests/serving/test_offload.py::test_"
HEADERS = "tests/serving/test_headers.py::test_"
NUMBERS = count()


def move_twice(_was: Any) -> Any:  # Any: a method of Dispatch
    moves: Counter[object] = Counter()

    def may_move(self: Any, _work: object, error: Exception) -> bool:
        moves[self] += 1
        return moves[self] <= 2 and isinstance(error, BackendUnavailable)

    return may_move


def count_late(was: Any) -> Any:  # Any: as above
    def guard(self: Any, step: Any, *arguments: object) -> Any:
        if step.__name__ == "end":
            asyncio.get_running_loop().call_soon(was, self, step, *arguments)
            return None
        return was(self, step, *arguments)

    return guard


MUTANTS = (
    # Dispatch
    Mutant("a request whose backend is lost moves", f"{DISPATCH}._may_move", returns(False),
        (f"{RETRIED}a_request_that_has_not_begun_is_answered_by_the_other_backend",
         f"{MOVED}a_stream_goes_on_from_its_last_token")),
    Mutant("it moves once after a fault", f"{DISPATCH}._may_move", move_twice, (f"{RETRIED}it_is_tried_once_only",)),
    Mutant("a few tokens do not clear an answer that lost two engines", "gateway.serving.loss:FEW", becomes(0),
        (f"{POISONED}an_answer_that_kills_its_engines_after_some_tokens_kills_two",
         f"{MOVED}an_answer_that_loses_two_engines_without_a_token_in_between_ends")),
    Mutant("what was lost with a request that is refused is free", f"{QUARANTINE}.refused_at",
        lambda _was: property(lambda self: 0.0),
        (f"{POISONED}what_was_lost_with_a_request_that_is_refused_is_free",)),
    Mutant("an answer loses three engines at most", "gateway.serving.loss:MOST_LOSSES", becomes(99),
        (f"{MOVED}an_answer_loses_no_more_than_three_engines",)),
    Mutant("a request that its engine may have died of is not sent to it again",
        "gateway.backends.http1_connection:CLOSES_S", becomes(99.0),
        (f"{FETCHED}a_request_whose_server_dies_later_on_a_kept_connection_is_not_sent_again",)),
    Mutant("what two engines were lost with is refused", f"{QUARANTINE}.refuse", returns(None),
        (f"{POISONED}an_official_client_sends_a_poison_again_and_is_refused",
         f"{POISONED}of_the_same_request_twice_neither_kills_a_third_engine")),
    Mutant("a refused request reaches no engine", f"{QUARANTINE}.check", returns(None),
        (f"{POISONED}an_official_client_sends_a_poison_again_and_is_refused",)),
    Mutant("requests whose engine died go on one at a time", f"{QUARANTINE}.enter",
        lambda was: lambda self, *, alone: was(self, alone=False),
        (f"{POISONED}requests_whose_engine_died_go_on_one_at_a_time",
         f"{POISONED}those_with_tokens_go_before_those_without")),
    Mutant("a request that goes on is out of the way when it has a token or ends", f"{QUARANTINE}.leave",
        returns(None), (f"{POISONED}requests_whose_engine_died_go_on_one_at_a_time",
         f"{POISONED}a_client_that_leaves_frees_the_way_for_the_next")),
    Mutant("a dead worker holds up nobody in quarantine", f"{QUARANTINE}.clear", returns(None),
        ("tests/routing/test_quarantine.py::test_what_a_dead_worker_had_holds_up_nobody",)),
    Mutant("a loss after tokens is no suspicion", f"{TOKENS}.has_tokens", returns(False),
        (f"{MOVED}an_answer_with_tokens_in_between_survives_a_second_loss_and_waits_for_an_engine",)),
    Mutant("requests with the same content have the same digest", "gateway.serving.token_lane:TokenWork.digest",
        lambda _was: lambda self: id(self.request),
        (f"{POISONED}an_official_client_sends_a_poison_again_and_is_refused",)),
    Mutant("relayed requests with the same body have the same digest", f"{RELAY}:make_digest",
        lambda _was: lambda *_parts: next(NUMBERS),
        (f"{POISONED}a_relayed_poison_kills_two_engines_and_no_other_request",)),
    Mutant("a relayed suspect whose engine lives with it holds up no other", f"{RELAY}:RelayAttempt.has_tokens",
        lambda _was: lambda self, beyond=0: self._call is not None and self._call.first is not None,
        (f"{POISONED}a_suspect_whose_engine_lives_with_it_holds_up_no_other",)),
    Mutant("after a second proxy that cannot reach its server a request ends", f"{RELAY}:UNREACHABLE", becomes(()),
        (f"{POISONED}what_proxies_cannot_send_on_is_no_suspect",)),
    Mutant("a begun stream that may not go on does not start again", f"{TOKENS}.may_move", returns(True),
        (f"{CHOICES}a_stream_whose_first_choice_has_begun_and_may_not_move_ends_with_the_error",)),
    Mutant("a pinned request does not move", f"{DISPATCH}._may_move",
        lambda _was: lambda self, _work, error: not self._has_moved and isinstance(error, BackendUnavailable),
        (f"{RETRIED}a_pinned_request_stays_where_it_was_sent",)),
    Mutant("no move after an error of the request itself", f"{DISPATCH}._may_move",
        lambda _was: lambda self, _work, error: not self._has_moved,
        (f"{RETRIED}errors_that_a_request_makes_itself_are_not_tried_elsewhere",)),
    Mutant("faults are tried elsewhere within a budget", "gateway.routing.moves:RetryBudget.spend", returns(True),
        (f"{RETRIED}faults_are_tried_elsewhere_within_a_budget",)),
    Mutant("a sick engine is ejected", "gateway.routing.conduct:Conduct.is_sick", returns(False),
        (f"{EJECTED}a_sick_engine_costs_clients_nothing_and_is_left_until_it_is_well",)),
    Mutant("no engine is ejected while no other serves", "gateway.routing.ejection:Ejection._other_serves",
        returns(True), (f"{EJECTED}an_engine_is_not_ejected_while_no_other_serves",)),
    Mutant("a request that fails everywhere is held against nobody", "gateway.routing.ejection:Ejection.retract_fault",
        returns(None), (f"{EJECTED}requests_that_fail_everywhere_and_refusals_eject_nobody",)),
    Mutant("an ejected engine is tried by a token", "gateway.routing.conduct:Conduct.may_take", returns(True),
        (f"{EJECTED}an_engine_that_fails_its_trial_gets_no_request",)),
    Mutant("an ejected engine is better than none", "gateway.routing.ejection:Ejection.bar",
        lambda _was: lambda self, avoid: self.suspects.union(avoid),
        (f"{EJECTED}the_ejected_engine_serves_where_the_other_goes_away",)),
    Mutant("what an engine has no room for waits", "gateway.routing.admission:Admission.has_room", returns(True),
        (f"{QUEUED}what_no_engine_has_room_for_waits_and_is_answered",)),
    Mutant("some room is kept for those that go ahead", "gateway.routing.admission:Admission._place_waiting",
        lambda _was: lambda self, ticket: self._place(ticket.request, ticket.avoid),
        (f"{QUEUED}some_room_is_kept_for_those_that_go_ahead",)),
    Mutant("an unread answer gives its place to a request that waits", f"{DISPATCH}.give_place", returns(None),
        (f"{QUEUED}an_answer_that_is_not_read_gives_its_place_to_a_request_that_waits",)),
    Mutant("a client that leaves waits no more", f"{DISPATCH}._stop_waiting", returns(None),
        (f"{QUEUED}a_client_that_leaves_waits_no_more",)),
    Mutant("what has lost its engine waits for any", f"{LOSSES}.outlives", returns(False),
        (f"{QUEUED}what_has_not_begun_waits_for_any_engine",
         f"{MOVED}an_answer_with_tokens_in_between_survives_a_second_loss_and_waits_for_an_engine")),
    Mutant("who waits too long is refused", "gateway.routing.waiting:WaitingRoom.pop_due",
        lambda _was: lambda _self, _most, _longest_s: iter(()), (f"{QUEUED}who_waits_too_long_is_refused",)),
    Mutant("a wait that would be too long is refused at once", "gateway.routing.waiting:WaitingRoom._predict_s",
        returns(0.0), (f"{WAITING}what_cannot_be_answered_in_time_is_refused_at_once",)),
    Mutant("a worker that could not go on holds up nobody", "gateway.routing.waiting:WaitingRoom._list_rivals",
        lambda _was: lambda self, _age_s: (
            tuple(head[1:-1]) for worker, head in enumerate(self._heads) if worker != self._seat and any(head)
        ),
        (f"{WAITING}a_worker_that_could_not_go_on_holds_up_nobody",)),
    Mutant("others' turns come before one's own", "gateway.routing.waiting:WaitingRoom._is_behind", returns(False),
        (f"{WAITING}clients_are_known_to_all_workers",)),
    Mutant("an ejected engine gets no overflow", "gateway.routing.ejection:Ejection.may_take", returns(True),
        ("tests/routing/test_admission.py::test_an_ejected_engine_gets_nothing_that_the_other_has_no_room_for",)),
    Mutant("an answer that ends short of what others had is a fault", "gateway.backends.calls:LiveCalls.may_end",
        returns(True), ("tests/backends/test_calls.py::test_an_answer_may_be_short_where_no_longer_one_was_seen",)),
    Mutant("what may not go on starts again", f"{CONTINUED}:find_obstacle", returns(None),
        (f"{MOVED}what_must_not_move_starts_again_where_its_client_has_seen_nothing",)),
    Mutant("an answer that is complete goes nowhere", f"{CONTINUED}:find_end", returns(None),
        (f"{MOVED}an_answer_that_was_complete_but_for_its_end_needs_no_other_engine",)),
    Mutant("what came counts against max_tokens and min_tokens", f"{CONTINUED}:make_rest",
        lambda was: lambda request, token_ids: replace(was(request, token_ids), params=request.params),
        (f"{MOVED}a_stream_goes_on_from_its_last_token",)),
    Mutant("a lease moves in one step", "gateway.routing.ledger:Lease.recount",
        lambda _was: lambda self, route, cell: setattr(self, "route", route),
        (f"{MOVED}a_client_may_leave_after_the_move",)),
    Mutant("an answer is counted before its lease is closed", f"{DISPATCH}._guard", count_late,
        (f"{CHATS}an_answer_is_counted_before_its_place_is_free",)),
    Mutant("a fault of the gateway's own is a 500", f"{DISPATCH}._guard",
        changes(lambda error: BackendError("It failed.") if isinstance(error, InternalError) else error),
        (f"{ERRORS}a_fault_of_the_gateway_is_a_500_whose_cause_only_the_log_has",)),
    Mutant("a client that leaves frees its place and its engine", f"{DISPATCH}.left", returns(None),
        ("tests/client_http/test_disconnect.py::test_slot_is_freed_when_the_official_client_closes_its_stream",)),
    Mutant("a backend that is lost in an answer is down at once", "gateway.routing.health:Health.doubt",
        returns(None), (f"{MOVED}a_whole_answer_goes_on_too_and_its_headers_name_who_ended_it",)),
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
        lambda _was: lambda self: self._waiting[0] if self._waiting and self.working < self._threads else None,
        (f"{SHARED}one_client_waits_for_another_in_turn",)),
    Mutant("long work leaves a thread free", f"{OFFLOAD}:_Job.is_long", reads(False),
        (f"{SHARED}long_work_leaves_a_thread_free",)),
    Mutant("what waits for a thread is bounded", f"{OFFLOAD}:Offload.__init__",
        lambda was: lambda self, threads=2, max_waiting=32: was(self, threads, 1 << 40),
        (f"{SHARED}one_too_many_is_refused_at_once_and_the_others_are_not_disturbed",)),
    # Header fields of its own
    Mutant("a pin needs a key", "gateway.serving.entrance:Entrance._check_own", returns(None),
        (f"{HEADERS}with_an_operator_key_only_operators_pin",
         "tests/serving/test_keys.py::test_with_keys_pins_and_run_tags_are_for_load_tests")),
    Mutant("inference needs a key", "gateway.serving.entrance:Entrance.check_head", returns(None),
        ("tests/serving/test_keys.py::test_with_keys_each_route_asks_for_its_scope",)),
    Mutant("a run id that could not be a label is refused", f"{OWN}:RUN_FORM", becomes(re.compile(r".*", re.DOTALL)),
        (f"{HEADERS}a_run_id_is_what_a_label_may_be",)),
    Mutant("request ids differ", f"{OWN}:RequestIds.mint", returns("0" * 32),
        (f"{HEADERS}request_ids_are_ours_and_differ",)),
)  # fmt: skip

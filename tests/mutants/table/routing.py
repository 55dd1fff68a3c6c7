"""Which backend gets a request: the policies, what counts, needs, pins, readiness."""

import math
from dataclasses import replace
from typing import Any

from gateway.core import Route
from gateway.flow import FIRSTS
from gateway.routing.needs import find_lacking
from gateway.routing.policies.curve.memory import ROOM
from tests.mutants.mutant import Mutant, becomes, changes, returns

THRESHOLD = "gateway.routing.policies.threshold:Threshold"
CURVE = "gateway.routing.policies.curve.policy:Curve"
PLANNER = "gateway.routing.policies.curve.planner:Planner"
LEARNING = "gateway.routing.policies.curve.learning"
GUARD = "gateway.routing.policies.curve.guard"
TRYING = "gateway.routing.policies.curve.trying"
SPLIT = "gateway.routing.policies.curve.split"
FLEET = "gateway.routing.fleet:Fleet"
HEALTH = "gateway.routing.health:Health"
DRY = "gateway.routing.dry:DryRun"

POLICY = "tests/routing/test_threshold.py::test_"
PLANNED = "tests/routing/test_curve.py::test_"
ROUTED = "tests/routing/test_router.py::test_"
NEEDED = "tests/routing/test_needs.py::test_"
TRIED = "tests/routing/test_dry.py::test_"
LEARNED = "tests/routing/test_learning.py::test_"
GUARDED = "tests/routing/test_guard.py::test_"
TRIES = "tests/routing/test_trying.py::test_"
COUNTED = "tests/routing/test_demand.py::test_"


def choose_without_band(was: Any) -> Any:  # Any: a policy's method
    def choose(self: Any, request: Any, loads: Any, state: Any, now: float) -> Any:
        in_flight = request.sequences + sum(load.in_flight for load in loads.values())
        side = self.high if in_flight >= self.up else self.low
        return replace(was(self, request, loads, state, now)[0], backend=side), replace(state, side=side)

    return choose


def probe_without_doubt(_was: Any) -> Any:  # Any: a method of Health
    async def probe(self: Any) -> None:
        self._woken.clear()
        self._update(await self._ask())

    return probe


def split_without_fixed(was: Any) -> Any:  # Any: a method of curve's Load
    def split(self: Any, side: int) -> Any:
        backends = tuple(backend._replace(fixed=0, fixed_share=0.0) for backend in self.backends)
        return was(replace(self, backends=backends), side)

    return split


def watch_the_return(was: Any) -> Any:  # Any: the guard
    def was_wrong(memory: Any, engines: Any, load: Any, side: int, now: float) -> bool:
        is_wrong = bool(was(memory, engines, load, side, now))
        if is_wrong:
            memory.is_watched = 1.0
        return is_wrong

    return was_wrong


MUTANTS = (
    Mutant("a load of `up` goes to the high backend", f"{THRESHOLD}.choose",
        lambda was: lambda self, request, loads, state, now: (
            replace(was(self, request, loads, state, now)[0], backend=state.side), state),
        (f"{POLICY}up_and_down_are_reached_by_the_request_being_placed",)),
    Mutant("choices count for the side by their mean", "gateway.routing.ledger:Ledger._find_brief",
        changes(lambda brief: dict.fromkeys(brief, 0)),
        ("tests/serving/test_attack.py::test_short_requests_with_many_choices_do_not_change_the_side",)),
    Mutant("choices that stay count in the end", "gateway.routing.ledger:Ledger.note_choices", returns(None),
        (f"{ROUTED}choices_count_for_the_side_by_their_mean_of_the_last_minute",)),
    Mutant("between `down` and `up` the side stays", f"{THRESHOLD}.choose", choose_without_band,
        (f"{POLICY}up_and_down_are_reached_by_the_request_being_placed",)),
    Mutant("a side is kept for its dwell", f"{THRESHOLD}.choose",
        lambda was: lambda self, request, loads, state, now: was(
            self, request, loads, replace(state, since=float("-inf")), now),
        (f"{POLICY}a_side_is_kept_for_its_dwell",)),
    Mutant("a change of plan has its price", f"{PLANNER}._find_loss", returns(0.0),
        (f"{PLANNED}what_was_lost_pays_the_price_of_a_change_and_the_way_back",)),
    Mutant("an overload does not lock the plan", f"{PLANNER}._find_crossing",
        lambda _was: lambda _self, _load, most: most,
        (f"{PLANNED}an_overload_does_not_lock_the_plan",)),
    Mutant("what is owed for long pays for a change in a quiet moment", f"{PLANNER}._find_worth",
        lambda was: lambda self, memory, here, saved, _age_s, lasted_s: was(self, memory, here, saved, 0.0, lasted_s),
        (f"{PLANNED}what_is_owed_for_long_pays_for_a_change_in_a_quiet_moment",)),
    Mutant("a change that has not paid makes the next ones promise more", f"{PLANNER}._settle", returns(None),
        (f"{PLANNED}a_change_that_has_not_paid_makes_the_next_ones_promise_more",)),
    Mutant("the margin is wider where the model is off", f"{PLANNER}.find_margin",
        lambda _was: lambda self, memory: self.rules.margin, (f"{PLANNED}the_margin_is_wider_where_the_model_is_off",)),
    Mutant("a plan serves its objective", f"{PLANNER}.weigh",
        lambda was: lambda self, load, side, headroom: was(
            replace(self, rules=replace(self.rules, objective="answer")), load, side, headroom),
        (f"{PLANNED}a_plan_serves_its_objective",)),
    Mutant("what only one engine serves counts there", "gateway.routing.policies.curve.load:Load.split",
        split_without_fixed, (f"{PLANNED}what_only_one_engine_serves_counts_and_slows_the_other_down",)),
    Mutant("a saving lasts no longer than plans did", "gateway.routing.policies.curve.planner:LASTING", becomes(1e9),
        (f"{PLANNED}a_saving_counts_for_half_as_long_as_plans_of_its_kind_lasted",)),
    Mutant("a peak in which nothing moved shows how long they last", f"{PLANNER}._note_peak", returns(None),
        (f"{PLANNED}a_peak_in_which_nothing_moves_counts_once_the_engine_in_use_is_clearly_better_again",)),
    Mutant("what was foreseen is compared with what came", f"{CURVE}._compare", returns(None),
        (f"{PLANNED}what_was_foreseen_is_compared_with_what_came",)),
    Mutant("answers follow a plan", f"{CURVE}.find_left", returns(()),
        (f"{PLANNED}answers_follow_on_shared_gpus_only",)),
    Mutant("a jump of the rate counts at once", "gateway.routing.policies.curve.rate:_find_cut", returns(0),
        ("tests/routing/test_rate.py::test_a_jump_counts_at_once_and_a_small_change_with_time",)),
    Mutant("a prompt stops those who run where it is read", f"{SPLIT}:find_cost_ms",
        lambda was: lambda words, engine, steps, prompt_tokens, in_flight: was(words, engine, steps, 0, in_flight),
        (f"{PLANNED}on_gpus_of_their_own_a_long_prompt_goes_where_it_stops_others_least",)),
    Mutant("a full engine has a queue", f"{SPLIT}:find_cost_ms",
        lambda was: lambda words, engine, steps, prompt_tokens, in_flight: was(
            (*words[:ROOM], 0.0, *words[ROOM + 1 :]), engine, steps, prompt_tokens, in_flight),
        (f"{PLANNED}on_gpus_of_their_own_a_full_engine_has_a_queue",)),
    Mutant("live steps correct the model", f"{LEARNING}:_take", returns(None),
        (f"{LEARNED}the_scales_of_a_wrong_model_are_found",)),
    Mutant("corrections are bounded", f"{LEARNING}:MOST", becomes(9.0),
        (f"{LEARNED}scales_are_bounded_and_one_at_its_bound_is_wrong",)),
    Mutant("a prompt that no cache holds is no stuck engine",
        "gateway.routing.policies.curve.policy:UNCACHED", becomes(0.0),
        ("tests/routing/test_stall.py::test_a_prompt_that_no_cache_holds_may_take_its_calibrated_time",)),
    Mutant("what moves is in no cache", f"{PLANNER}._find_price",
        lambda was: lambda self, load, to: was(replace(self, movers=self.engines), load, to),
        (f"{PLANNED}what_moves_is_in_no_cache_of_the_engine_that_it_goes_to",)),
    Mutant("what an engine's cache spares is not held against decoding", f"{LEARNING}:LEAST_PREFILL", becomes(0.4),
        (f"{LEARNED}a_cache_that_is_not_reported_shows_as_fast_prefill_and_not_as_another_engine",)),
    Mutant("how many an engine runs at once is found", f"{LEARNING}:_find_max_sequences", returns(0.0),
        (f"{LEARNED}how_many_run_at_once_shows_where_prompts_wait_for_a_place",)),
    Mutant("prompts that are read do not wait for a place", f"{LEARNING}:TOO_LONG", becomes(0.0),
        (f"{LEARNED}prompts_that_wait_for_something_else_do_not_show_it",)),
    Mutant("a late beat teaches nothing", f"{LEARNING}:LATE_S", becomes(9.0),
        (f"{LEARNED}what_shows_something_else_teaches_nothing",)),
    Mutant("foreign load teaches nothing", f"{LEARNING}:learn",
        lambda was: lambda memory, engine, seen, elapsed_s, is_alone: was(
            memory, engine, seen._replace(foreign=0), elapsed_s, is_alone),
        (f"{LEARNED}what_shows_something_else_teaches_nothing",)),
    Mutant("steps of engines that slow each other down teach nothing", f"{LEARNING}:learn",
        lambda was: lambda memory, engine, seen, elapsed_s, is_alone: was(memory, engine, seen, elapsed_s, True),
        (f"{LEARNED}what_shows_something_else_teaches_nothing",)),
    Mutant("an engine that was not measured is called so", f"{LEARNING}:is_wrong", returns(False),
        (f"{LEARNED}a_model_is_called_wrong_by_enough_windows",)),
    Mutant("a change after which fewer tokens come is taken back", f"{GUARD}:was_wrong", returns(False),
        (f"{GUARDED}the_plan_goes_back_and_does_not_watch_the_return",)),
    Mutant("a return is not watched", f"{GUARD}:was_wrong", watch_the_return,
        (f"{GUARDED}the_plan_goes_back_and_does_not_watch_the_return",)),
    Mutant("an engine that was wrongly gone to is blocked longer each time", f"{GUARD}:MOST_BLOCK_S", becomes(5.0),
        (f"{GUARDED}an_engine_is_blocked_longer_each_time_until_it_was_right",)),
    Mutant("the engine not used is tried once in ten minutes", f"{TRYING}:EVERY_S", becomes(60.0),
        (f"{TRIES}a_try_is_due_after_ten_quiet_minutes_and_more_rarely_after_failures",)),
    Mutant("tries are rarer after failures", f"{TRYING}:MOST_EVERY_S", becomes(600.0),
        (f"{TRIES}a_try_is_due_after_ten_quiet_minutes_and_more_rarely_after_failures",)),
    Mutant("only in quiet minutes the engine not used is tried", f"{TRYING}:_is_quiet", returns(True),
        (f"{TRIES}a_try_is_due_after_ten_quiet_minutes_and_more_rarely_after_failures",)),
    Mutant("a try stays where it is better", f"{TRYING}:go_on",
        lambda was: lambda memory, side, now, *, is_better: was(memory, side, now, is_better=False),
        (f"{TRIES}a_try_stays_where_it_is_better",)),
    Mutant("a policy's words are all kept", "gateway.routing.state_words:write_state",
        lambda was: lambda ints, floats, state, backends: was(
            ints, floats, replace(state, words=state.words[:-1]), backends),
        (f"{PLANNED}the_policys_words_survive_and_fit",)),
    Mutant("a first token is delivered once", "gateway.flow:read_firsts",
        lambda was: lambda row, backend, count: was(row, backend, FIRSTS if count else 0),
        (f"{COUNTED}a_first_token_is_delivered_once_whichever_worker_asks",)),
    Mutant("a dead worker's answers count no more", "gateway.routing.demand:DemandCounts.clear", returns(None),
        (f"{COUNTED}the_demand_is_that_of_all_workers",)),
    Mutant("an answer that has ended holds nothing", "gateway.flow:Flow.end",
        lambda was: lambda self, prompt_tokens, generated, *, has_begun: was(
            self, prompt_tokens, 0, has_begun=has_begun),
        ("tests/test_flow.py::test_the_sums_equal_a_recount_after_any_events",)),
    Mutant("answers under way count for how long answers are", "gateway.lengths:_survive",
        lambda was: lambda ended, passed, running: was(ended, [0.0] * len(passed), running),
        ("tests/test_lengths.py::test_the_first_to_end_are_short_and_are_not_taken_for_all",)),
    Mutant("what one engine alone could serve is forgotten", "gateway.routing.demand:LATELY_S", becomes(1e9),
        ("tests/routing/test_demand.py::test_what_one_engine_alone_could_serve_is_soon_forgotten",)),
    Mutant("a policy kept is in force after a restart", "gateway.routing.policy_file:PolicyFile._holds", returns(False),
        ("tests/routing/test_policy_file.py::test_a_policy_that_was_set_goes_on_with_its_version_and_its_origin",)),
    Mutant("a measurement does not steer", "gateway.routing.ledger:Ledger.place",
        lambda was: lambda self, route, state, *, sequences=1, steers: was(
            self, route, state, sequences=sequences, steers=True),
        (f"{ROUTED}only_a_tagged_and_pinned_request_does_not_steer",)),
    Mutant("a lease counts all sequences of its request", "gateway.routing.ledger:Ledger.place",
        lambda was: lambda self, route, state, *, sequences=1, steers: was(self, route, state, steers=steers),
        (f"{ROUTED}a_request_counts_with_all_its_sequences_and_for_the_side_as_one_at_first",)),
    Mutant("a lease that is closed counts no more", "gateway.routing.ledger:Lease.close", returns(None),
        (f"{ROUTED}a_lease_counts_to_the_last_moment_and_is_given_back_on_an_error",)),
    Mutant("a need goes to a backend that meets it, whatever the load", "gateway.routing.needs:find_lacking",
        returns(frozenset()), (f"{NEEDED}who_lacks_a_need_is_no_candidate_whatever_the_load",)),
    Mutant("a need that no backend meets is a bad request", f"{FLEET}._find_lacking",
        lambda _was: lambda self, request: find_lacking(request.needs, self.backends),
        (f"{NEEDED}what_no_backend_can_do_is_a_bad_request_that_names_the_field",)),
    Mutant("a pin is obeyed", f"{FLEET}._obey_pin",
        lambda _was: lambda _self, _pin, loads: Route(next(iter(loads)), "pin"),
        (f"{ROUTED}a_pin_is_obeyed_whatever_the_load",)),
    Mutant("a retry avoids the backend that failed", f"{FLEET}.lease",
        lambda was: lambda self, request, avoid=(): was(self, request),
        (f"{ROUTED}a_retry_avoids_the_backend_that_failed",)),
    Mutant("a change of a policy that is no longer in force is refused", f"{FLEET}.set_policy",
        lambda was: lambda self, change: was(self, replace(change, version=None)),
        (f"{ROUTED}a_change_meant_for_another_version_is_refused",)),
    Mutant("a backend that could not be reached is no candidate", f"{HEALTH}.doubt", returns(None),
        (f"{ROUTED}a_backend_that_is_down_is_no_candidate",)),
    Mutant("a probe does not overrule a doubt that came after it began", f"{HEALTH}._probe", probe_without_doubt,
        ("tests/routing/test_health.py::test_a_probe_under_way_does_not_overrule_a_later_doubt",)),
    Mutant("a policy on trial is counted", f"{DRY}.choose", returns(None),
        (f"{TRIED}it_chooses_for_every_request_and_the_policy_in_force_places_them",)),
    Mutant("a policy on trial plans", f"{DRY}.plan", returns(None),
        (f"{TRIED}one_that_plans_does_so_though_the_policy_in_force_does_not",)),
    Mutant("a policy on trial has one side for all workers", f"{DRY}._keep", returns(None),
        (f"{TRIED}workers_share_its_side_and_its_counts",)),
    Mutant("moves go as fast as the other engine prefills", f"{CURVE}.find_terms",
        lambda was: lambda self, *given: was(self, *given)._replace(tokens_per_s=math.inf),
        (f"{PLANNED}answers_move_as_fast_as_the_engine_that_they_go_to_reads_prompts",)),
)  # fmt: skip

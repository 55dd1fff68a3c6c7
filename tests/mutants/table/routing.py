"""Which backend gets a request: the policies, what counts, needs, pins, readiness."""

import math
from dataclasses import replace
from typing import Any

from gateway.routing.policies.forecast import ANSWER
from gateway.routing.policies.pace import find_pace

from gateway.core import Route
from gateway.routing.needs import find_lacking
from tests.mutants.mutant import Mutant, becomes, returns

THRESHOLD = "gateway.routing.policies.threshold:Threshold"
CURVE = "gateway.routing.policies.curve:Curve"
FLEET = "gateway.routing.fleet:Fleet"
HEALTH = "gateway.routing.health:Health"
DRY = "gateway.routing.dry:DryRun"

POLICY = "tests/routing/test_threshold.py::test_"
PLANNED = "tests/routing/test_curve.py::test_"
ROUTED = "tests/routing/test_router.py::test_"
NEEDED = "tests/routing/test_needs.py::test_"
TRIED = "tests/routing/test_dry.py::test_"


def choose_without_band(was: Any) -> Any:  # Any: a policy's method
    def choose(self: Any, request: Any, loads: Any, state: Any, now: float) -> Any:
        in_flight = request.sequences + sum(load.in_flight for load in loads.values())
        side = self.high if in_flight >= self.up else self.low
        return replace(was(self, request, loads, state, now)[0], backend=side), replace(state, side=side)

    return choose


def probe_without_doubt(_was: Any) -> Any:  # Any: a method of Health
    async def probe(self: Any) -> None:
        self._doubted.clear()
        self._settle(await self._ask())

    return probe


MUTANTS = (
    Mutant("a load of `up` goes to the high backend", f"{THRESHOLD}.choose",
        lambda was: lambda self, request, loads, state, now: (
            replace(was(self, request, loads, state, now)[0], backend=state.side), state),
        (f"{POLICY}up_and_down_are_reached_by_the_request_being_placed",)),
    Mutant("between `down` and `up` the side stays", f"{THRESHOLD}.choose", choose_without_band,
        (f"{POLICY}up_and_down_are_reached_by_the_request_being_placed",)),
    Mutant("a side is kept for its dwell", f"{THRESHOLD}.choose",
        lambda was: lambda self, request, loads, state, now: was(
            self, request, loads, replace(state, since=float("-inf")), now),
        (f"{POLICY}a_side_is_kept_for_its_dwell",)),
    Mutant("a change of plan has its price", f"{CURVE}._find_price", returns(0.0),
        (f"{PLANNED}the_way_back_waits_until_what_was_lost_would_have_paid_both_changes",)),
    Mutant("answers follow a plan", f"{CURVE}.find_left", returns(()),
        (f"{PLANNED}answers_follow_on_shared_gpus_only",)),
    Mutant("an overload shows the queue of some seconds", "gateway.routing.policies.forecast:HORIZON_S", becomes(300.0),
        ("tests/routing/test_forecast.py::test_an_overload_shows_the_queue_of_the_next_seconds_and_no_more",)),
    Mutant("a jump of the rate counts at once", "gateway.routing.policies.demand:_find_cut", returns(0),
        ("tests/routing/test_demand.py::test_a_jump_counts_at_once_and_a_small_change_with_time",)),
    Mutant("a pace is bounded", "gateway.routing.policies.pace:MOST", becomes(9.0),
        ("tests/routing/test_pace.py::test_a_minute_shows_a_pace_within_bounds",)),
    Mutant("what one engine alone could serve is forgotten", "gateway.routing.demand:LATELY_S", becomes(1e9),
        ("tests/routing/test_demand.py::test_what_one_engine_alone_could_serve_is_soon_forgotten",)),
    Mutant("a policy kept is in force after a restart", "gateway.routing.policy_file:PolicyFile._holds", returns(False),
        ("tests/routing/test_policy_file.py::test_a_policy_that_was_set_goes_on_with_its_version_and_its_origin",)),
    Mutant("a measurement does not steer", "gateway.routing.ledger:Ledger.place",
        lambda was: lambda self, choose, *, sequences=1, steers: was(self, choose, sequences=sequences, steers=True),
        (f"{ROUTED}only_a_tagged_and_pinned_request_does_not_steer",)),
    Mutant("a lease counts all sequences of its request", "gateway.routing.ledger:Ledger.place",
        lambda was: lambda self, choose, *, sequences=1, steers: was(self, choose, steers=steers),
        (f"{ROUTED}a_request_counts_with_all_its_sequences_and_a_burst_splits_exactly",)),
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
    Mutant("a retry avoids the backend that failed", "gateway.routing.router:Router.lease",
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
    Mutant("a load that grows leaves the low-load engine early", f"{CURVE}._find_headroom",
        lambda _was: lambda self, state: self.headroom if state.side == self.high else 0.0,
        (f"{PLANNED}a_load_that_grows_leaves_the_low_load_engine_before_the_crossing",)),
    Mutant("the way to the low-load engine needs headroom", f"{CURVE}._find_headroom",
        lambda was: lambda self, state: was(replace(self, headroom=0.0), state),
        (f"{PLANNED}the_way_to_the_low_load_engine_needs_headroom",)),
    Mutant("a plan serves its objective", f"{CURVE}._objective", lambda _was: property(lambda self: ANSWER),
        (f"{PLANNED}a_plan_serves_its_objective",)),
    Mutant("an engine that has shown nothing is as slow as the other", "gateway.routing.policies.curve:find_paces",
        lambda _was: lambda seen, speeds: tuple(find_pace(*each) for each in zip(seen, speeds, strict=True)),
        ("tests/routing/test_pace.py::test_where_both_engines_are_slower_than_their_model_the_correction_costs_nothing",)),
)  # fmt: skip

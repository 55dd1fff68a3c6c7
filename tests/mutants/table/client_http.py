"""The client's wire: what a connection may take, and how long."""

from dataclasses import replace

from tests.mutants.mutant import Mutant, Replacement, returns

CONNECTION = "gateway.client_http.connection:ClientConnection"
INTAKE = "gateway.client_http.intake"

ARRIVING = "tests/client_http/test_intake.py::test_"
FAR = 1 << 40


def with_limit(**limits: int) -> Replacement:
    """An Intake with such limits, whatever is configured."""
    return lambda was: lambda self, given, *more, **named: was(self, replace(given, **limits), *more, **named)


MUTANTS = (
    Mutant("a request that does not arrive in time is a 408", f"{CONNECTION}._check_due",
        lambda _was: lambda self: self.transport.close(), (f"{ARRIVING}a_head_has_a_time_to_arrive",)),
    Mutant("a connection on which nothing is asked is closed in time", f"{CONNECTION}._expect",
        lambda was: lambda self, seconds: was(self, 100 * seconds),
        (f"{ARRIVING}a_connection_without_a_request_is_closed_without_an_answer",)),
    Mutant("a body beyond the limit is a 413", f"{INTAKE}:Intake.__init__", with_limit(max_body_bytes=FAR),
        ("tests/serving/test_errors.py::test_a_body_may_be_as_large_as_it_says",)),
    Mutant("a head beyond the limit is a 431", f"{INTAKE}:Intake.__init__", with_limit(max_head_bytes=FAR),
        (f"{ARRIVING}a_head_has_a_size",)),
    Mutant("bodies that are not whole have a limit together", f"{INTAKE}:Intake.__init__",
        with_limit(max_bodies_bytes=FAR), (f"{ARRIVING}bodies_that_are_not_whole_have_a_size_together",)),
    Mutant("a client that reads nothing is disconnected", "gateway.client_http.transport:StallWatch._look",
        returns(None), ("tests/client_http/test_disconnect.py::test_a_client_that_stops_reading_is_cut_off_in_time",)),
    Mutant("a request without one Host is a 400", f"{CONNECTION}._find_fault", returns(None),
        (f"{ARRIVING}a_request_without_one_host_is_refused[/health-hosts0]",)),
    Mutant("connections beyond the limit are refused", f"{INTAKE}:Intake.is_full", returns(False),
        (f"{ARRIVING}beyond_the_usual_number_a_probe_is_answered_and_nothing_else",)),
    Mutant("of too many connections beyond the limit the oldest is closed", f"{INTAKE}:Intake.keep_surplus",
        lambda _was: lambda self, transport: self._surplus.update({transport: None}),
        (f"{ARRIVING}of_too_many_beyond_the_oldest_is_closed_so_that_a_probe_is_answered",)),
    Mutant("no engine gets a client's keys", "gateway.client_http.head:NOT_SENT_ON",
        lambda was: was - {b"authorization", b"cookie", b"x-api-key", b"api-key"},
        ("tests/client_http/test_head.py::test_fields_of_the_connection_and_the_gateways_own_do_not_go_on",)),
)  # fmt: skip

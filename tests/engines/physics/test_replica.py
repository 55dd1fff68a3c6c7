"""One replica, step by step."""

import pytest

from engines.physics import EngineModel, Job, Replica

ENGINE = EngineModel(((1, 10.0),), prompt_ms=10.0, budget_tokens=1000, max_sequences=8)


def serve(engine: EngineModel, *jobs: Job) -> list[float]:
    """Serves jobs that are all there at once. Returns the milliseconds of each step."""
    replica, now, steps = Replica(engine), 0.0, []
    for job in jobs:
        replica.add(job)
    while step_ms := replica.begin():
        now += step_ms / 1e3
        steps.append(step_ms)
        replica.end(now)
    assert len(replica) == 0
    assert replica.context == pytest.approx(0.0)
    return steps


def test_an_answer_takes_its_prefill_and_a_step_for_each_further_token() -> None:
    job = Job(0.0, 500, 4)
    assert serve(ENGINE, job) == pytest.approx([15.0, 10.0, 10.0, 10.0])
    assert [job.first_s, job.end_s] == pytest.approx([0.015, 0.045])


def test_prompts_are_prefilled_in_order_within_the_budget() -> None:
    jobs = [Job(0.0, 700, 1), Job(0.0, 700, 1), Job(0.0, 10, 1)]
    assert serve(ENGINE, *jobs) == pytest.approx([20.0, 10 + 4.1])
    assert [job.first_s for job in jobs] == pytest.approx([0.02, 0.0341, 0.0341])


def test_a_chunk_attends_to_what_was_read_before() -> None:
    engine = EngineModel(((1, 10.0),), attention_ms=1.0, budget_tokens=1000)
    assert serve(engine, Job(0.0, 3000, 1)) == pytest.approx([11.0, 13.0, 15.0])  # 3000 squared in all


def test_a_step_gives_several_tokens_to_each() -> None:
    engine = EngineModel(((1, 10.0),), tokens_per_step=2.5, verified=4)
    assert len(serve(engine, Job(0.0, 10, 11))) == 5  # the first token, and 10 in four steps


def test_answers_that_end_within_a_step_leave_no_context_behind() -> None:
    serve(EngineModel(((1, 10.0),), tokens_per_step=2.5, verified=4), Job(0.0, 10, 12), Job(0.0, 10, 6))


def test_what_a_cache_has_is_not_read_and_the_last_token_always_is() -> None:
    class Cache:
        def find(self, job: Job) -> int:
            return 400

        def keep(self, job: Job) -> None: ...

    replica, jobs = Replica(ENGINE, Cache()), [Job(0.0, 500, 1), Job(0.0, 400, 1)]
    for job in jobs:
        replica.add(job)
    assert replica.waiting == 2
    assert replica.begin() == pytest.approx(10.0 + 1.01)
    assert [job.cached for job in jobs] == [400, 399]
    assert replica.waiting == 0


def test_what_is_beyond_the_most_sequences_waits() -> None:
    jobs = [Job(0.0, 10, 3) for _ in range(9)]
    serve(ENGINE, *jobs)
    assert [job.first_s for job in jobs[:8]] == pytest.approx([0.0108] * 8)
    assert jobs[8].first_s is not None
    assert jobs[8].first_s > 0.03


def test_a_prompt_waits_until_there_is_kv_for_it() -> None:
    engine = EngineModel(((1, 10.0),), kv_tokens=1000)
    first, second = Job(0.0, 600, 20), Job(0.0, 600, 20)
    serve(engine, first, second)
    assert second.first_s == pytest.approx((first.end_s or 0.0) + 0.01)


def test_kv_that_runs_out_sends_back_who_began_last() -> None:
    engine = EngineModel(((1, 10.0),), prompt_ms=1.0, kv_tokens=1000)
    first, second = Job(0.0, 480, 100), Job(0.0, 480, 100)
    steps = serve(engine, first, second)
    assert first.end_s == pytest.approx(sum(steps[:100]) / 1e3)
    assert second.end_s is not None
    assert first.end_s is not None
    assert second.end_s > first.end_s
    assert max(steps[1:]) == pytest.approx(10 + 0.5, abs=0.02)  # read again, with what it had


def test_who_leaves_takes_its_tokens_along_and_reads_them_elsewhere() -> None:
    replica, other, job = Replica(ENGINE), Replica(ENGINE), Job(0.0, 500, 10)
    replica.add(job)
    for _ in range(3):
        replica.begin()
        replica.end(0.0)
    assert job.so_far == 3
    replica.drop(job)
    assert (len(replica), replica.context, job.generated) == (0, 0, 3)
    other.add(job)
    assert other.begin() == pytest.approx(15.03)
    other.end(1.0)
    assert job.so_far == 4
    assert job.first_s == 0.0


def test_a_prefix_that_a_replica_has_kept_is_not_read_again() -> None:
    class Keeps:
        def find(self, job: Job) -> int:
            return 400

        def keep(self, job: Job) -> None: ...

    replica = Replica(ENGINE, Keeps())
    replica.add(Job(0.0, 500, 1))
    assert replica.begin() == pytest.approx(11.0)

# tests/contract: the decisions of a client, one rule at a time.
from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from contract.keys import child_names, shard_name
from contract.models import (
    AttemptNote,
    Child,
    Commit,
    Control,
    EndMarker,
    Intent,
    JournalEntry,
    Outcome,
    PartCommit,
    PhaseSeconds,
    Plan,
    SplitCommit,
    StartMarker,
)
from contract.protocol import (
    MAX_INTENTS,
    SHARED_FACTOR,
    Action,
    Attempt,
    AttemptState,
    CancelJob,
    Finish,
    FlushNotes,
    Health,
    JobStatus,
    LookAtStatus,
    NoteOutcome,
    Pause,
    RaiseEpoch,
    RunState,
    SendAgain,
    SendIntents,
    Stall,
    Tuning,
    Wait,
    budget_needed,
    decide,
    fold,
    fold_starts,
    look,
    reserve_for,
    rules_for,
    run_word,
    start_by_for,
    survey,
    ttl_for,
    union_length,
    window_for,
    worker_seconds,
)
from tests.contract.world import PLAN_ID, START, make_plan

TUNING = Tuning()


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def intent(number: int, shard: int | str = 0, *, sent: float = 0, low: bool = False, ttl: float = 600, epoch: int = 0) -> Intent:
    name = shard_name(shard) if isinstance(shard, int) else shard
    sent_at = at(sent)
    return Intent(
        attempt=number, shard=name, sent_at=sent_at, start_by=start_by_for(sent_at, ttl, 60), ttl_s=ttl, execution_timeout_s=60,
        reserve_usd=0.7, epoch=epoch, low_priority=low,
    )  # fmt: skip


def attempt(
    number: int, shard: int | str = 0, *, noted: str | None = "sent", client: str = "me", cause: str | None = None, **more: Any
) -> Attempt:
    job = f"job-{number}" if noted == "sent" else None
    return Attempt(client, intent(number, shard, **more), noted, job, cause)


def start(
    number: int, shard: int = 0, *, execution: int | None = None, when: float = 0, worker: str = "w1", load: float = 0
) -> StartMarker:
    return StartMarker(
        plan=PLAN_ID, shard=shard_name(shard), execution=f"{execution or number:016x}", attempt=number, epoch=0, job_id=f"job-{number}",
        worker_id=worker, load_s=load, at=at(when),
    )  # fmt: skip


def end(
    number: int, shard: int = 0, *, execution: int | None = None, when: float = 0, wall: float = 10, outcome: Outcome = "won"
) -> EndMarker:
    return EndMarker(
        plan=PLAN_ID, shard=shard_name(shard), execution=f"{execution or number:016x}", attempt=number, outcome=outcome, wall_s=wall,
        seconds=PhaseSeconds(), at=at(when),
    )  # fmt: skip


def commit(number: int, shard: int = 0) -> PartCommit:
    return PartCommit(
        plan=PLAN_ID, shard=shard_name(shard), execution=f"{number:016x}", attempt=number, part=None, errors=None, ok=1, failed=1,
        tokens_in=0,        tokens_out=0, input_digest="0" * 64, digest="0" * 64, at=START,
    )  # fmt: skip


def make_state(
    *attempts: Attempt,
    plan: Plan | None = None,
    commits: dict[str, Commit] | None = None,
    starts: list[StartMarker] | None = None,
    ends: list[EndMarker] | None = None,
    health: Health | None = None,
    rules: dict[str, Any] | None = None,
    control: dict[str, Any] | None = None,
    now: float = 0,
    **more: Any,
) -> RunState:
    plan = plan or make_plan(shards=8)
    return RunState(
        plan=plan,
        rules=replace(rules_for(plan), **(rules or {})),
        client="me",
        control=changed(Control(plan=PLAN_ID, at=START, by="x"), **(control or {})),
        started_at=START,
        attempts={a.key: a for a in attempts},
        commits=commits or {},
        commits_at=at(now),
        starts={s.execution: s for s in starts or []},
        ends={e.execution: e for e in ends or []},
        health=health if health is not None else Health(),
        health_at=at(now),
        **more,
    )


def sent(actions: tuple[Action, ...]) -> list[Intent]:
    return [i for a in actions if isinstance(a, SendIntents) for i in a.intents]


def state_of(state: RunState, number: int, now: float, client: str = "me") -> tuple[AttemptState, str | None]:
    found = survey(state, at(now), TUNING).standings[client, number]
    return found.state, found.cause


# --- formulas ------------------------------------------------------------------------------------------------------------------------


def test_the_window_is_three_times_what_the_pace_can_run() -> None:
    assert window_for(1, 2) == 6
    assert window_for(10, 2) == 60


def test_ttl_covers_the_wait_behind_the_window_and_stays_within_runpods_limits() -> None:
    assert ttl_for(6, 600, 60) == 3 * 3 * 600 + 60
    assert ttl_for(6000, 3600, 60) == 7 * 86400
    assert ttl_for(1, 1, 0) == 10
    assert start_by_for(START, 5460, 600) == at(4860)


def test_a_reserve_is_a_whole_execution_and_its_share_of_a_cold_start() -> None:
    assert reserve_for(600, 60, 2, 0.0002) == pytest.approx((600 + 30) * 0.0002)


def test_overlapping_executions_of_one_worker_are_paid_once() -> None:
    starts = {s.execution: s for s in (start(1, when=0, load=5), start(2, 1, when=0), start(3, 2, worker="w2"))}
    ends = {e.execution: e for e in (end(1, when=20, wall=20), end(2, 1, when=25, wall=20), end(3, 2, when=8, wall=8))}
    # w1: load from -5 to 0, then 0 to 20 and 5 to 25; w2: 0 to 8
    assert worker_seconds(starts, ends, 60, at(100)) == pytest.approx(30 + 8)


def test_an_execution_without_end_is_charged_its_whole_time_once_that_is_past() -> None:
    starts = {s.execution: s for s in (start(1, when=0, load=5),)}
    assert worker_seconds(starts, {}, 60, at(59)) == 0
    assert worker_seconds(starts, {}, 60, at(60)) == 65


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12))
def test_the_union_of_intervals_counts_each_second_once(spans: list[tuple[int, int]]) -> None:
    covered = {second for first, length in spans for second in range(first, first + length)}
    assert union_length((first, first + length) for first, length in spans) == len(covered)


# --- an attempt ----------------------------------------------------------------------------------------------------------------------


def test_the_journal_alone_says_what_an_attempt_is_to_another_client() -> None:
    assert state_of(make_state(attempt(1, noted=None)), 1, 1) == (AttemptState.INTENDED, None)
    assert state_of(make_state(attempt(1, noted=None, client="other")), 1, 1, "other") == (AttemptState.UNKNOWN, None)
    assert state_of(make_state(attempt(1, noted="unknown")), 1, 1) == (AttemptState.UNKNOWN, None)
    assert state_of(make_state(attempt(1)), 1, 1) == (AttemptState.SENT, None)
    assert state_of(make_state(attempt(1, noted="rejected", cause="auth")), 1, 1) == (AttemptState.REJECTED, "auth")


def test_a_commit_decides_whatever_else_is_said() -> None:
    dead = replace(attempt(1, noted="dead", cause="failed"))
    state = make_state(dead, attempt(2), commits={"00000": commit(1)})
    assert state_of(state, 1, 1) == (AttemptState.WON, None), "a commit that comes late still wins"
    assert state_of(state, 2, 1) == (AttemptState.LOST, None)


def test_another_plans_commit_decides_nothing() -> None:
    foreign = changed(commit(1), plan="cd" * 32)
    assert state_of(make_state(attempt(1), commits={"00000": foreign}), 1, 1) == (AttemptState.SENT, None)


def test_an_attempt_is_dead_only_after_a_second_look_at_the_commit() -> None:
    seen = {("me", 1): look(None, JobStatus("FAILED"), at(10))}
    assert state_of(make_state(attempt(1), looks=seen, now=20), 1, 20)[0] is AttemptState.SENT
    assert state_of(make_state(attempt(1), looks=seen, now=39), 1, 45)[0] is AttemptState.SENT, "the commits were looked at too early"
    assert state_of(make_state(attempt(1), looks=seen, now=40), 1, 45) == (AttemptState.DEAD, "failed")


def test_the_workers_own_word_is_the_cause() -> None:
    seen = {("me", 1): look(None, JobStatus("COMPLETED", "input_changed"), at(0))}
    assert state_of(make_state(attempt(1), looks=seen, now=31), 1, 31) == (AttemptState.DEAD, "input_changed")


def test_404_is_unknown_never_dead_and_only_after_two_looks() -> None:
    once = look(None, JobStatus(None), at(0))
    assert state_of(make_state(attempt(1), looks={("me", 1): once}, now=60), 1, 60)[0] is AttemptState.SENT
    state = make_state(attempt(1), looks={("me", 1): look(once, JobStatus(None), at(31))}, now=60)
    assert state_of(state, 1, 60) == (AttemptState.EXPIRED, "missing")
    assert survey(state, at(60)).reserved_usd == pytest.approx(0.7), "its cost stays reserved until its ttl"
    assert survey(state, at(600)).reserved_usd == 0


def test_a_job_that_is_found_again_is_not_missing() -> None:
    seen = look(look(None, JobStatus(None), at(0)), JobStatus("IN_QUEUE"), at(31))
    assert seen.since is None
    assert state_of(make_state(attempt(1), looks={("me", 1): seen}, now=100), 1, 100)[0] is AttemptState.SENT


def test_past_its_ttl_an_attempt_is_expired_and_free() -> None:
    state = make_state(attempt(1), now=600)
    assert state_of(state, 1, 600) == (AttemptState.EXPIRED, "ttl")
    assert survey(state, at(600)).reserved_usd == 0


def test_an_attempt_without_an_answer_is_absent_when_the_endpoint_was_twice_without_any_job() -> None:
    unknown = attempt(1, noted="unknown")
    assert state_of(make_state(unknown, empty_since=at(0), now=50), 1, 50)[0] is AttemptState.UNKNOWN
    assert state_of(make_state(unknown, empty_since=at(0), now=61), 1, 61) == (AttemptState.EXPIRED, "absent")


def test_a_start_marker_is_an_answer() -> None:
    found = fold_starts({("me", 1): attempt(1, noted="unknown")}, [start(1)])
    assert found["me", 1].job_id == "job-1"
    state = make_state(found["me", 1], starts=[start(1)])
    assert state_of(state, 1, 1)[0] is AttemptState.SENT
    assert survey(state, at(1)).running


def test_a_job_that_waits_again_after_its_worker_died_counts_as_queued() -> None:
    seen = {("me", 1): look(None, JobStatus("IN_QUEUE"), at(20))}
    state = make_state(attempt(1), starts=[start(1, when=10)], looks=seen)
    assert survey(state, at(21)).queued_ordinary == 1
    running = make_state(attempt(1), starts=[start(1, when=10), start(1, when=30, execution=2)], looks=seen)
    assert survey(running, at(31)).running


def test_notes_may_come_in_any_order_and_never_take_a_stronger_one_back() -> None:
    notes = [
        AttemptNote(attempt=1, client="me", state="sent", job_id="job-1", at=START),
        AttemptNote(attempt=1, client="me", state="unknown", at=START),
        AttemptNote(attempt=1, client="me", state="dead", cause="failed", at=START),
    ]
    first = JournalEntry(plan=PLAN_ID, number=0, client="me", at=START, intents=(intent(1),))
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        entry = JournalEntry(plan=PLAN_ID, number=1, client="other", at=START, notes=tuple(notes[i] for i in order))
        found = fold(fold({}, [first]), [entry])["me", 1]
        assert (found.noted, found.job_id, found.cause) == ("dead", "job-1", "failed")


# --- money ---------------------------------------------------------------------------------------------------------------------------


def test_each_further_start_marker_reserves_again() -> None:
    state = make_state(attempt(1), starts=[start(1), start(1, execution=2)])
    assert survey(state, at(1)).reserved_usd == pytest.approx(2 * 0.7)


def test_an_ended_execution_costs_what_it_took() -> None:
    state = make_state(attempt(1), starts=[start(1)], ends=[end(1, when=10, wall=10)])
    seen = survey(state, at(11))
    assert seen.settled_usd == pytest.approx(0.1)
    assert seen.reserved_usd == 0


def test_a_job_that_was_cancelled_in_the_queue_frees_its_reserve_after_a_second_look() -> None:
    seen = {("me", 1): look(None, JobStatus("CANCELLED"), at(0))}
    assert survey(make_state(attempt(1), looks=seen), at(29)).reserved_usd == pytest.approx(0.7)
    assert survey(make_state(attempt(1), looks=seen), at(30)).reserved_usd == 0


def test_a_job_that_failed_without_a_start_marker_keeps_its_reserve() -> None:
    seen = {("me", 1): look(None, JobStatus("FAILED"), at(0))}
    assert survey(make_state(attempt(1), looks=seen, now=100), at(100)).reserved_usd == pytest.approx(0.7)


def test_a_reserve_is_free_only_when_markers_were_looked_for_after_its_ttl() -> None:
    """Found by the property test: a client slept between its look at the markers and its decision, and an execution had begun meanwhile."""
    stale = make_state(attempt(1, ttl=600), rules={"budget_usd": 1.0}, now=700, markers_at=at(599))
    assert survey(stale, at(700)).reserved_usd == pytest.approx(0.7)
    actions = decide(stale, at(700), TUNING)
    assert not sent(actions)
    assert isinstance(actions[-1], Wait), "the next look tells"
    fresh = replace(stale, markers_at=at(600))
    assert survey(fresh, at(700)).reserved_usd == 0
    assert len(sent(decide(fresh, at(700), TUNING))) == 1


def test_sending_stops_where_the_next_reserve_would_pass_the_budget() -> None:
    actions = decide(make_state(rules={"budget_usd": 1.5}), START, TUNING)
    assert len(sent(actions)) == 2
    state = make_state(attempt(1), attempt(2, 1), rules={"budget_usd": 1.5})
    actions = decide(state, START, TUNING)
    assert not sent(actions)
    assert isinstance(actions[-1], Wait), "what is out may cost less than its reserve"


def test_a_budget_that_nothing_can_free_ends_the_run() -> None:
    done: dict[str, Commit] = {"00000": commit(1)}
    state = make_state(
        attempt(1), commits=done, starts=[start(1)], ends=[end(1, when=50, wall=50)], rules={"budget_usd": 1.0}, now=60
    )  # fmt: skip
    finish = decide(state, at(60), TUNING)[-1]
    assert isinstance(finish, Finish)
    assert (finish.state, finish.cause) == ("stopped", "budget")
    assert "$1.00" in finish.reason


def test_a_budget_stop_fences_jobs_without_an_answer_before_the_client_leaves() -> None:
    state = make_state(attempt(1, noted="unknown"), rules={"budget_usd": 1.0})
    assert isinstance(decide(state, at(79), TUNING)[-1], Wait), "an answer, or a start marker, may still come"
    raised = decide(state, at(80), TUNING)[-1]
    assert isinstance(raised, RaiseEpoch)
    assert raised.mode == "keep"
    after = replace(state, control=changed(state.control, mode="keep", epoch=1, reason=raised.reason))
    finish = decide(after, at(81), TUNING)[-1]
    assert isinstance(finish, Finish)
    assert (finish.state, finish.cause) == ("stopped", "budget")
    assert "$1.00" in finish.reason


# --- pace and order ------------------------------------------------------------------------------------------------------------------


def test_the_first_jobs_ask_for_the_pace_and_the_rest_is_low_priority() -> None:
    plan = make_plan(shards=50, pace=3)
    found = sent(decide(make_state(plan=plan), START, TUNING))
    assert [i.low_priority for i in found] == [False] * 3 + [True] * 9, "2 x pace x shards per worker are queued"


def test_live_workers_need_no_ordinary_jobs() -> None:
    plan = make_plan(shards=50, pace=3)
    found = sent(decide(make_state(plan=plan, health=Health(running=2, idle=1, ready=1)), START, TUNING))
    assert all(i.low_priority for i in found)
    found = sent(decide(make_state(plan=plan, health=Health(running=1, initializing=1)), START, TUNING))
    assert sum(not i.low_priority for i in found) == 1


def test_request_count_keeps_as_many_ordinary_jobs_outstanding_as_make_the_pace() -> None:
    plan = make_plan(shards=50, pace=3, scaler="REQUEST_COUNT")
    found = sent(decide(make_state(plan=plan), START, TUNING))
    assert [i.low_priority for i in found] == [False] * 6 + [True] * 6


@settings(max_examples=150, deadline=None)
@given(
    pace=st.integers(1, 5),
    live=st.integers(0, 6),
    ordinary=st.integers(0, 6),
    low=st.integers(0, 12),
    running=st.integers(0, 4),
    scaler=st.sampled_from(["QUEUE_DELAY", "REQUEST_COUNT"]),
)
def test_sending_never_asks_for_more_workers_than_the_pace_nor_passes_the_window(
    pace: int, live: int, ordinary: int, low: int, running: int, scaler: str
) -> None:
    """Invariant 9, and W."""
    plan = make_plan(shards=120, pace=pace, workers_max=5, scaler=scaler)
    flags = [False] * ordinary + [True] * low
    attempts = [attempt(n + 1, n, low=flag) for n, flag in enumerate(flags)]
    attempts += [attempt(100 + n, 60 + n) for n in range(running)]
    state = make_state(
        *attempts, plan=plan, health=Health(running=live), starts=[start(100 + n, 60 + n, worker=f"w{n}") for n in range(running)]
    )
    fresh = sent(decide(state, at(1), TUNING))
    asked = sum(not i.low_priority for i in fresh)
    if scaler == "QUEUE_DELAY":
        assert asked == 0 or max(live, running) + ordinary + asked <= pace
    else:
        assert asked == 0 or ordinary + running + asked <= pace * 2
        assert sum(i.low_priority for i in fresh) + low <= max(pace * 2, low)
    assert not fresh or len(attempts) + len(fresh) <= window_for(pace, 2)
    assert len({i.shard for i in fresh} | {a.intent.shard for a in attempts}) == len(fresh) + len(attempts)


def test_shards_go_out_in_order_and_failed_ones_after_the_fresh() -> None:
    dead = attempt(1, 0, noted="dead", cause="failed")
    found = sent(decide(make_state(dead, plan=make_plan(shards=4)), START, TUNING))
    assert [i.shard for i in found] == ["00001", "00002", "00003", "00000"]
    assert [i.attempt for i in found] == [2, 3, 4, 5], "a number is never used twice"
    (action,) = [a for a in decide(make_state(dead, plan=make_plan(shards=4)), START, TUNING) if isinstance(a, SendIntents)]
    assert action.again == {"00000"}, "its commit is looked at once more before it is paid again"


def test_what_has_no_answer_is_sent_again_last_and_only_after_its_time() -> None:
    state = make_state(attempt(1, 0, noted="unknown"), plan=make_plan(shards=1))
    assert not sent(decide(state, at(79), TUNING))
    assert [i.shard for i in sent(decide(state, at(80), TUNING))] == ["00000"], "executionTimeout and a cold start have passed"
    with_more = make_state(attempt(1, 0, noted="unknown"), plan=make_plan(shards=2))
    assert [i.shard for i in sent(decide(with_more, at(200), TUNING))] == ["00001"]


def test_an_unanswered_ordinary_job_does_not_keep_workers_away_for_long() -> None:
    """Found on the emulator: nobody asked for a worker until its ttl."""
    state = make_state(attempt(1, 0, noted="unknown"), plan=make_plan(shards=2))
    assert all(i.low_priority for i in sent(decide(state, at(29), TUNING)))
    assert [i.low_priority for i in sent(decide(state, at(31), TUNING))] == [False]


def test_low_priority_work_that_no_worker_comes_for_is_sent_again_as_ordinary_and_then_cancelled() -> None:
    low = [attempt(n + 1, n, low=True) for n in range(2)]
    plan = make_plan(shards=2, pace=2, shards_per_worker=1)
    state = make_state(*low, plan=plan, short_since=at(0), health=Health(idle=1))
    assert not sent(decide(state, at(29), TUNING)), "the worker that lives may still take one"
    (again,) = sent(decide(state, at(30), TUNING))
    assert (again.shard, again.low_priority) == ("00000", False)
    after = make_state(*low, attempt(3, 0, sent=30), plan=make_plan(shards=2), short_since=at(0))
    assert [a.keys for a in decide(after, at(31), TUNING) if isinstance(a, CancelJob)] == [(("me", 1),)]


def test_a_job_that_waited_for_a_worker_that_left_is_sent_again_soon() -> None:
    """A run began just as the last worker's idle time was over: its one job had low priority, and nobody came."""
    state = make_state(attempt(1, low=True), plan=make_plan(shards=1), short_since=at(0))
    assert not sent(decide(state, at(9), TUNING))
    assert [i.low_priority for i in sent(decide(state, at(10), TUNING))] == [False]


def test_journal_entries_hold_at_most_a_hundred_intents() -> None:
    plan = make_plan(shards=400, pace=100, workers_max=100)
    batches = [a for a in decide(make_state(plan=plan), START, TUNING) if isinstance(a, SendIntents)]
    assert [len(b.intents) for b in batches] == [MAX_INTENTS] * 4


def test_an_intent_that_was_not_taken_is_sent_again_while_it_is_fresh_and_replaced_when_it_is_not() -> None:
    state = make_state(attempt(1, noted=None), plan=make_plan(shards=1))
    assert [a.keys for a in decide(state, at(59), TUNING) if isinstance(a, SendAgain)] == [(("me", 1),)]
    (note,) = next(a for a in decide(state, at(60), TUNING) if isinstance(a, NoteOutcome)).notes
    assert (note.state, note.cause) == ("rejected", "not_sent")


def test_children_of_a_split_are_sent_in_their_parents_place() -> None:
    plan = make_plan(shards=1, rows_per_shard=2)
    source = plan.shards[0].source
    children = tuple(Child(shard=name, source=changed(source, rows=(n, n + 1), count=1)) for n, name in enumerate(child_names("00000", 2)))
    split = SplitCommit(plan=PLAN_ID, shard="00000", children=children, at=START)
    found = sent(decide(make_state(attempt(1), plan=plan, commits={"00000": split}), START, TUNING))
    assert [i.shard for i in found] == ["00000.0", "00000.1"]


# --- ends ----------------------------------------------------------------------------------------------------------------------------


def deaths(count: int, cause: str = "failed", shard: int = 0) -> list[Attempt]:
    return [attempt(n + 1, shard, noted="dead", cause=cause) for n in range(count)]


def test_a_shard_gets_as_many_attempts_as_the_plan_allows() -> None:
    plan = make_plan(shards=1, max_attempts=3)
    assert sent(decide(make_state(*deaths(2), plan=plan), START, TUNING))
    finish = decide(make_state(*deaths(3), plan=plan), START, TUNING)[-1]
    assert isinstance(finish, Finish)
    assert (finish.state, finish.cause) == ("failed", "attempts")
    assert "00000" in finish.reason
    assert "failed" in finish.reason


@pytest.mark.parametrize("cause", ["fenced", "expired", "cancelled", "yielded"])
def test_deaths_that_are_not_the_shards_fault_are_not_counted(cause: str) -> None:
    assert sent(decide(make_state(*deaths(9, cause), plan=make_plan(shards=1, max_attempts=3)), START, TUNING))


def test_the_other_shards_are_finished_unless_most_fail() -> None:
    plan = make_plan(shards=9, max_attempts=1)
    poison = [attempt(n + 1, n, noted="dead", cause="failed") for n in range(3)]
    assert sent(decide(make_state(*poison[:2], plan=plan), START, TUNING))
    finish = decide(make_state(*poison, plan=plan), START, TUNING)[-1]
    assert isinstance(finish, Finish)
    assert finish.state == "failed"
    done = {shard_name(n): commit(n + 1, n) for n in range(3, 7)}
    assert sent(decide(make_state(*poison, plan=plan, commits=dict(done)), START, TUNING))


def test_a_complete_run_cancels_what_is_left_and_flushes_its_notes() -> None:
    plan = make_plan(shards=1)
    state = make_state(attempt(1), attempt(2), plan=plan, commits={"00000": commit(1)}, unflushed_since=START)
    cancel, flush, finish = decide(state, at(1), TUNING)
    assert cancel == CancelJob((("me", 2),))
    assert flush == FlushNotes()
    assert isinstance(finish, Finish)
    assert finish.state == "complete"


def test_refused_credentials_pause_but_not_those_of_an_earlier_client() -> None:
    state = make_state(attempt(1, noted="dead", cause="credentials", sent=5))
    pause = decide(state, at(10), TUNING)[-1]
    assert isinstance(pause, Pause)
    assert pause.cause == "credentials"
    assert sent(decide(replace(state, started_at=at(6)), at(10), TUNING))


@pytest.mark.parametrize("cause", ["auth", "endpoint"])
def test_a_refused_key_and_an_unknown_endpoint_pause(cause: str) -> None:
    pause = decide(make_state(attempt(1, noted="rejected", cause=cause)), at(1), TUNING)[-1]
    assert isinstance(pause, Pause)
    assert pause.cause == cause


def test_a_changed_image_pauses_unless_it_is_allowed() -> None:
    plan = make_plan(shards=2, image="one")
    marker = changed(start(1), image="two")
    state = make_state(attempt(1), plan=plan, starts=[marker])
    pause = decide(state, at(1), TUNING)[-1]
    assert isinstance(pause, Pause)
    assert pause.cause == "image"
    assert not isinstance(decide(replace(state, rules=replace(state.rules, allow_mixed_image=True)), at(1), TUNING)[-1], Pause)


def test_a_deadline_raises_the_epoch_before_anything_is_cancelled() -> None:
    actions = decide(make_state(attempt(1), rules={"deadline": at(10)}), at(10), TUNING)
    assert actions[-1] == RaiseEpoch("keep", "deadline")
    assert not [a for a in actions if isinstance(a, CancelJob)]


@pytest.mark.parametrize(("mode", "cancelled"), [("keep", (("me", 2),)), ("stop", (("me", 1), ("me", 2)))])
def test_keep_lets_running_jobs_finish_and_stop_does_not(mode: str, cancelled: tuple[Any, ...]) -> None:
    state = make_state(attempt(1), attempt(2, 1), starts=[start(1)], control={"mode": mode, "epoch": 1})
    actions = decide(state, at(1), TUNING)
    assert [a.keys for a in actions if isinstance(a, CancelJob)] == [cancelled]
    assert not sent(actions)
    assert isinstance(actions[-1], Wait)
    after = decide(state, at(11), TUNING)[-1]
    assert isinstance(after, Wait if mode == "keep" else Finish), "stop waits a moment for the end markers, no more"
    late = decide(state, at(200), TUNING)[-1]
    assert isinstance(late, Finish), "keep waits no longer than an execution may take"


def test_a_webhook_wakes_a_look_and_nothing_else() -> None:
    state = make_state(attempt(1), plan=make_plan(shards=1), woken=frozenset({("me", 1), ("me", 77)}))
    quiet = decide(replace(state, woken=frozenset()), at(1), TUNING)
    woken = decide(state, at(1), TUNING)
    assert [a for a in woken if a not in quiet] == [LookAtStatus((("me", 1),))]


def test_status_is_asked_once_in_a_while_for_each_job() -> None:
    state = make_state(attempt(1), plan=make_plan(shards=1))
    assert not [a for a in decide(state, at(29), TUNING) if isinstance(a, LookAtStatus)]
    assert [a for a in decide(state, at(30), TUNING) if isinstance(a, LookAtStatus)]
    looked = replace(state, looks={("me", 1): look(None, JobStatus("IN_QUEUE"), at(30))})
    assert not [a for a in decide(looked, at(59), TUNING) if isinstance(a, LookAtStatus)]


# --- shards that share a dying engine ------------------------------------------------------------------------------------------------


def nights(*deaths: tuple[int, float, str], cause: str = "failed") -> tuple[list[Attempt], list[StartMarker]]:
    """Attempts that died without an end marker: (shard, when it began, worker)."""
    attempts = [attempt(n, shard, noted="dead", cause=cause, sent=when) for n, (shard, when, _) in enumerate(deaths, 1)]
    return attempts, [start(n, shard, when=when, worker=worker) for n, (shard, when, worker) in enumerate(deaths, 1)]


def test_an_innocent_shard_beside_a_poison_one_is_not_given_up_and_each_goes_on_alone() -> None:
    plan = make_plan(shards=2, max_attempts=3)
    together = [(shard, when, f"w{when:.0f}") for when in (0, 100, 200) for shard in (0, 1)]
    attempts, starts = nights(*together)
    state = make_state(*attempts, plan=plan, starts=starts, now=300)
    seen = survey(state, at(300), TUNING)
    assert (seen.exhausted, seen.suspects) == ((), ("00000", "00001"))
    (alone,) = sent(decide(state, at(300), TUNING))
    assert alone.shard == "00000"
    out = replace(state, attempts={**state.attempts, ("me", 7): attempt(7, 0, sent=300)})
    assert not sent(decide(out, at(301), TUNING)), "the other waits until this one is over"
    attempts, starts = nights(*together, *[(0, when, "w9") for when in (300, 400, 500)])
    state = make_state(*attempts, plan=plan, starts=starts, now=600)
    assert survey(state, at(600), TUNING).exhausted == ("00000",), "it died alone as often as it may"
    assert [i.shard for i in sent(decide(state, at(600), TUNING))] == ["00001"]
    finish = decide(replace(state, commits={"00001": commit(10, 1)}), at(600), TUNING)[-1]
    assert isinstance(finish, Finish)
    assert "1 shard failed in every attempt (00000)" in finish.reason


def test_suspects_wait_for_everything_else_and_take_turns() -> None:
    plan = make_plan(shards=4, max_attempts=3)
    attempts, starts = nights((0, 0, "w1"), (1, 0, "w1"), (0, 100, "w2"), (1, 100, "w2"))
    state = make_state(*attempts, plan=plan, starts=starts, now=200)
    assert [i.shard for i in sent(decide(state, at(200), TUNING))] == ["00002", "00003"]
    one_out = replace(state, attempts={**state.attempts, ("me", 9): attempt(9, 2, sent=200)}, commits={"00003": commit(8, 3)})
    assert not sent(decide(one_out, at(201), TUNING))
    attempts, starts = nights((0, 0, "w1"), (1, 0, "w1"), (0, 100, "w2"), (1, 100, "w2"), (0, 200, "w3"))
    done: dict[str, Commit] = {"00002": commit(8, 2), "00003": commit(9, 3)}
    state = make_state(*attempts, plan=plan, starts=starts, commits=done, now=300)
    assert [i.shard for i in sent(decide(state, at(300), TUNING))] == ["00001"], "who died alone less often comes first"


def test_one_death_in_company_keeps_no_shard_waiting() -> None:
    """A store that goes away takes with it whatever runs: thousands of shards must not stand in one line then."""
    attempts, starts = nights((0, 0, "w1"), (1, 0, "w1"))
    state = make_state(*attempts, plan=make_plan(shards=2), starts=starts, now=100)
    assert [i.shard for i in sent(decide(state, at(100), TUNING))] == ["00000", "00001"]


def alone_or_not(cause: str, *beside: StartMarker, ends: tuple[EndMarker, ...] = ()) -> bool:
    """Whether shard 0, which died once of once on worker w1 from second 10 on, has used up its attempt."""
    attempts, starts = nights((0, 10, "w1"), cause=cause)
    state = make_state(*attempts, plan=make_plan(shards=2, max_attempts=1), starts=[*starts, *beside], ends=list(ends), now=300)
    return survey(state, at(300), TUNING).exhausted == ("00000",)


def test_only_what_was_in_the_engine_when_it_died_shares_a_death() -> None:
    beside = start(2, 1, when=0)
    assert alone_or_not("failed")
    assert not alone_or_not("failed", beside)
    assert not alone_or_not("timed_out", beside)
    assert not alone_or_not("failed", beside, ends=(end(2, 1, when=20, outcome="partial"),)), "a dying engine leaves such end markers"
    assert alone_or_not("failed", beside, ends=(end(2, 1, when=20, outcome="won"),)), "that one survived"
    assert alone_or_not("failed", beside, ends=(end(2, 1, when=9, outcome="partial"),)), "that one was over"
    assert alone_or_not("failed", start(2, 1, when=0, worker="w2"))
    assert alone_or_not("failed", start(2, 1, when=71)), "executionTimeout is 60 s"
    assert alone_or_not("failed", start(2, 1, when=60, load=20)), "a later process of the same worker"
    assert not alone_or_not("failed", start(2, 1, when=11, load=20)), "the first marker of the same process came second"
    assert alone_or_not("failed", start(2, 0, when=12)), "the same shard, delivered twice"
    assert alone_or_not("partial", beside), "a worker that answers has an engine that lives"


def test_the_last_execution_of_an_attempt_decides_whether_it_died_alone() -> None:
    first = start(2, 1, when=0)
    assert alone_or_not("failed", first, start(1, 0, when=100, execution=7, worker="w3"))
    assert not alone_or_not("failed", start(1, 0, when=5, execution=7, worker="w3"), first)


def test_expiries_of_what_had_begun_are_shared_like_deaths() -> None:
    gone = [attempt(n, n - 1, noted="expired", cause="missing") for n in (1, 2)]
    plan = make_plan(shards=2, max_attempts=1)
    together = make_state(*gone, plan=plan, starts=[start(1, 0), start(2, 1)], now=100)
    assert survey(together, at(100), TUNING).suspects == ("00000", "00001")
    apart = make_state(*gone, plan=plan, starts=[start(1, 0), start(2, 1, worker="w2")], now=100)
    assert survey(apart, at(100), TUNING).exhausted == ("00000", "00001")


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_deaths_in_company_are_bounded_too(limit: int) -> None:
    """Invariant 8: whatever RunPod puts beside a shard, it is given up at last."""
    plan = make_plan(shards=2, max_attempts=limit)
    for times, given_up in ((SHARED_FACTOR * limit - 1, ()), (SHARED_FACTOR * limit, ("00000", "00001"))):
        attempts, starts = nights(*[(shard, 100 * n, "w1") for n in range(times) for shard in (0, 1)])
        state = make_state(*attempts, plan=plan, starts=starts, now=5000)
        assert survey(state, at(5000), TUNING).exhausted == given_up
    assert isinstance(decide(state, at(5000), TUNING)[-1], Finish)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.sampled_from(["w1", "w2"])), max_size=30), st.integers(1, 3))
def test_a_shard_is_given_up_for_its_own_deaths_or_for_very_many(deaths: list[tuple[int, int, str]], limit: int) -> None:
    """Against the rule in its plainest form: who overlaps whom, directly or through others, on one worker."""
    attempts, starts = nights(*[(shard, float(when), worker) for shard, when, worker in deaths])
    state = make_state(*attempts, plan=make_plan(shards=4, max_attempts=limit), starts=starts, now=2000)
    seen = survey(state, at(2000), TUNING)
    linked = [{n} for n in range(len(deaths))]
    for n, (_, when, worker) in enumerate(deaths):
        for m, (_, other, there) in enumerate(deaths):
            if worker == there and abs(when - other) <= 60 and linked[n] is not linked[m]:
                linked[n] |= linked[m]
                for member in linked[m]:
                    linked[member] = linked[n]
    for shard in range(4):
        mine = [n for n, death in enumerate(deaths) if death[0] == shard]
        shared = sum(len({deaths[m][0] for m in linked[n]}) > 1 for n in mine)
        over = len(mine) - shared >= limit or shared >= SHARED_FACTOR * limit
        assert (shard_name(shard) in seen.exhausted) == over
        assert (shard_name(shard) in seen.suspects) == (not over and shared >= min(2, limit))


# --- a queue that does not move ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("health", "low", "cause"),
    [
        (Health(throttled=2), False, "throttled"),
        (Health(unhealthy=1), False, "unhealthy"),
        (Health(initializing=1), False, "initializing"),
        (Health(), True, "only_low_priority"),
        (Health(), False, "no_worker_starts"),
        (Health(running=1), False, "busy"),
    ],
)
def test_a_queue_that_does_not_move_is_named(health: Health, low: bool, cause: str) -> None:
    state = make_state(attempt(1, low=low, ttl=9000), plan=make_plan(shards=1), health=health)
    assert not [a for a in decide(state, at(149), TUNING) if isinstance(a, Stall)]
    (stall,) = [a for a in decide(state, at(150), TUNING) if isinstance(a, Stall)]
    assert (stall.cause, stall.final) == (cause, False)
    late = decide(state, at(1800), TUNING)
    if cause == "busy":
        assert isinstance(late[-1], Wait), "other work before this run is no reason to give up"
    else:
        raised = late[-1]
        assert isinstance(raised, RaiseEpoch), "jobs that wait are fenced before the client leaves"
        after = replace(state, control=changed(state.control, mode="keep", epoch=1, reason=raised.reason))
        actions = decide(after, at(1801), TUNING)
        assert [a.keys for a in actions if isinstance(a, CancelJob)] == [(("me", 1),)]
        final = actions[-1]
        assert isinstance(final, Stall)
        assert (final.cause, final.final) == (cause, True)


def test_what_runs_is_no_stall() -> None:
    state = make_state(attempt(1, ttl=9000), attempt(2, 1, ttl=9000), starts=[start(1)], health=Health(throttled=1))
    assert not [a for a in decide(state, at(1000), TUNING) if isinstance(a, Stall)]


def test_no_workers_allowed_is_said_at_once_and_nothing_is_sent() -> None:
    stall = decide(make_state(rules={"workers_max": 0}), START, TUNING)[-1]
    assert isinstance(stall, Stall)
    assert (stall.cause, stall.final) == ("no_workers", True)


# --- size ----------------------------------------------------------------------------------------------------------------------------


def test_a_decision_over_five_thousand_shards_takes_a_moment() -> None:
    """A tick must not grow into the time between ticks."""
    plan = make_plan(shards=5000, rows_per_shard=1, pace=50, workers_max=50)
    done: dict[str, Commit] = {shard_name(n): commit(n + 1, n) for n in range(4700)}
    state = make_state(
        *(attempt(n + 1, n) for n in range(5000)),
        plan=plan,
        commits=done,
        starts=[start(n + 1, n, worker=f"w{n % 50}") for n in range(4800)],
        ends=[end(n + 1, n) for n in range(4700)],
    )
    began = time.process_time()
    actions = decide(state, at(1), TUNING)
    assert time.process_time() - began < 1.0
    assert isinstance(actions[-1], Wait)


def test_a_night_in_which_every_worker_died_is_judged_in_a_moment() -> None:
    plan = make_plan(shards=5000, rows_per_shard=1, pace=50, workers_max=50, max_attempts=3)
    attempts, starts = nights(*[(n // 2, float(n % 7), f"w{n % 5}") for n in range(10_000)])
    state = make_state(*attempts, plan=plan, starts=starts, now=1000)
    began = time.process_time()
    actions = decide(state, at(1000), TUNING)
    assert time.process_time() - began < 2.0
    assert len(sent(actions)) == 1, "every shard is a suspect"


# --- refusals -------------------------------------------------------------------------------------------------------------------------


REFUSES = JobStatus("FAILED", error="refused: input.task.revision is 'abc'.", worker_id="w1")


def refused_state(*more: Attempt, **settings: Any) -> RunState:
    return make_state(attempt(1), *more, looks={("me", 1): look(None, REFUSES, at(0))}, now=30, **settings)


def test_a_job_that_a_worker_refuses_is_not_sent_again_and_the_run_fails_with_its_words() -> None:
    actions = decide(refused_state(plan=make_plan(shards=1)), at(30), TUNING)
    assert not sent(actions)
    (note,) = next(a.notes for a in actions if isinstance(a, NoteOutcome))
    assert (note.state, note.cause, note.error) == ("dead", "refused", "input.task.revision is 'abc'.")
    assert actions[-1] == Finish("failed", "refused", "the workers refuse the run's jobs: input.task.revision is 'abc'.")


def test_a_refusal_fences_the_jobs_that_would_be_refused_too() -> None:
    state = refused_state(attempt(2, 1))
    raised = decide(state, at(30), TUNING)[-1]
    assert isinstance(raised, RaiseEpoch)
    assert raised.mode == "keep"
    after = replace(state, control=changed(state.control, mode="keep", epoch=1, reason=raised.reason, at=at(30)))
    actions = decide(after, at(31), TUNING)
    assert [a.keys for a in actions if isinstance(a, CancelJob)] == [(("me", 2),)]
    finish = decide(after, at(41), TUNING)[-1]
    assert isinstance(finish, Finish)
    assert (finish.state, finish.cause) == ("failed", "refused")
    assert run_word(after, survey(after, at(41))) == "failed"


def test_a_refusal_holds_no_reserve_and_is_no_death_of_the_shard() -> None:
    seen = survey(refused_state(plan=make_plan(shards=1), rules={"max_attempts": 1}), at(30))
    assert (seen.reserved_usd, seen.exhausted) == (0, ())


def test_yesterdays_refusal_does_not_end_todays_run() -> None:
    old = attempt(1, noted="dead", cause="refused", sent=-100)
    actions = decide(make_state(old, plan=make_plan(shards=1)), START, TUNING)
    assert [i.shard for i in sent(actions)] == ["00000"], "the endpoint may have been put right"


def test_a_failed_run_says_what_its_last_job_said() -> None:
    dead = [replace(attempt(n, noted="dead", cause="failed"), error=f"no memory, {n}") for n in (1, 2)]
    state = make_state(*dead, plan=make_plan(shards=1, max_attempts=2))
    finish = decide(state, at(1), TUNING)[-1]
    assert finish == Finish("failed", "attempts", "1 shard failed in every attempt (00000): failed. The last job said: no memory, 2")
    assert run_word(state, survey(state, at(1))) == "failed"


def test_the_journal_keeps_what_a_job_said() -> None:
    note = AttemptNote(attempt=1, client="me", state="dead", cause="failed", error="no memory", at=START)
    entry = JournalEntry(plan=PLAN_ID, number=0, client="me", at=START, intents=(intent(1),), notes=(note,))
    (found,) = fold({}, [entry]).values()
    assert (found.cause, found.error) == ("failed", "no memory")


# --- what a cancel leaves -------------------------------------------------------------------------------------------------------------


FENCED = {"mode": "stop", "epoch": 1}


def test_a_fenced_job_that_no_worker_had_is_dead_as_soon_as_runpod_has_cancelled_it() -> None:
    seen = {("me", 1): look(None, JobStatus("CANCELLED"), at(5))}
    state = make_state(attempt(1), looks=seen, control=FENCED, markers_at=at(6))
    found = survey(state, at(6))
    assert (found.outstanding, found.reserved_usd) == ((), 0)
    assert found.standings["me", 1].cause == "cancelled"


@pytest.mark.parametrize(
    "changes",
    [
        {"looks": {("me", 1): look(None, JobStatus("CANCELLED", worker_id="w1"), at(5))}},
        {"looks": {("me", 1): look(None, JobStatus(None), at(5))}},
        {"control": {"mode": "run", "epoch": 0}},
        {"markers_at": at(4)},
        {"starts": [start(1)]},
    ],
    ids=["a worker had it", "RunPod does not know it", "nothing fences it", "the markers are older", "it has begun"],
)
def test_what_might_have_begun_is_dead_only_after_the_second_look(changes: dict[str, Any]) -> None:
    seen = {("me", 1): look(None, JobStatus("CANCELLED"), at(5))}
    state = make_state(attempt(1), **{"looks": seen, "control": FENCED, "markers_at": at(6), **changes})
    found = survey(state, at(6))
    assert found.outstanding == ("00000",)
    assert found.reserved_usd > 0


def test_a_stopped_execution_that_wrote_its_end_is_over_and_one_that_did_not_is_after_its_time() -> None:
    stopped = make_state(attempt(1), starts=[start(1)], ends=[end(1, when=9, outcome="partial")], control=FENCED)
    assert survey(stopped, at(10)).outstanding == ()
    silent = make_state(attempt(1), starts=[start(1)], control=FENCED)
    assert survey(silent, at(89)).outstanding == ("00000",)
    assert survey(silent, at(90)).outstanding == ()
    won = make_state(attempt(1), starts=[start(1)], ends=[end(1, when=9, outcome="won")], control=FENCED)
    assert survey(won, at(10)).outstanding == ("00000",), "its commit is about to be seen"


def test_a_late_commit_of_a_cancelled_job_still_wins() -> None:
    state = make_state(attempt(1, noted="dead", cause="cancelled"), commits={"00000": commit(1)}, control=FENCED)
    assert survey(state, at(1)).standings["me", 1].state is AttemptState.WON


def test_whoever_winds_down_looks_for_what_became_of_the_cancelled_jobs_but_not_for_long() -> None:
    state = make_state(attempt(1), plan=make_plan(shards=1), control={"mode": "keep", "epoch": 1}, cancelled=frozenset({("me", 1)}))
    assert LookAtStatus((("me", 1),)) in decide(state, at(1), TUNING)
    seen = replace(state, looks={("me", 1): look(None, JobStatus("CANCELLED"), at(2))}, markers_at=at(3), commits_at=at(3))
    actions = decide(seen, at(3), TUNING)
    assert isinstance(actions[-1], Finish)
    assert [n.cause for a in actions if isinstance(a, NoteOutcome) for n in a.notes] == ["cancelled"]
    assert isinstance(decide(state, at(10), TUNING)[-1], Finish), "RunPod did not say: whoever resumes looks again"


@pytest.mark.parametrize(
    ("attempts", "control", "word"),
    [
        ((), {}, "planned"),
        ((attempt(1),), {}, "running"),
        ((attempt(1, noted="dead", cause="failed"),), {}, "interrupted"),
        ((attempt(1),), {"mode": "keep", "epoch": 1, "reason": "cancelled"}, "cancelled"),
        ((attempt(1),), {"mode": "keep", "epoch": 1, "reason": "deadline"}, "stopped"),
        ((attempt(1),), {"mode": "keep", "epoch": 1, "reason": "budget: no more"}, "stopped"),
        ((attempt(1),), {"mode": "keep", "epoch": 1, "reason": "stalled busy: others"}, "stalled"),
    ],
)
def test_a_run_is_called_what_a_person_would_call_it(attempts: tuple[Attempt, ...], control: dict[str, Any], word: str) -> None:
    state = make_state(*attempts, plan=make_plan(shards=1), control=control)
    assert run_word(state, survey(state, at(1))) == word


# --- budgets that are too small --------------------------------------------------------------------------------------------------------


def test_a_budget_below_one_reserve_says_what_it_must_be() -> None:
    finish = decide(make_state(rules={"budget_usd": 0.001}), START, TUNING)[-1]
    assert isinstance(finish, Finish)
    assert finish.reason == (
        "a budget of $0.0010 cannot start one job: each reserves up to $0.7000, the price of its whole executionTimeout. "
        "Give at least $0.7100."
    )


@given(st.floats(0.0001, 50))
def test_the_budget_that_is_asked_for_starts_a_job(price: float) -> None:
    plan = make_plan(shards=2, usd_per_second=price)
    needed = budget_needed(rules_for(plan))
    assert len(sent(decide(make_state(plan=plan, rules={"budget_usd": needed}), START, TUNING))) >= 1

"""What must hold for every schedule, size and set of times."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import pipeline

# Quarters add up without rounding, so "as early as possible" can be tested with ==.
QUARTERS = st.integers(0, 40).map(lambda n: n / 4)
POSITIVE = st.integers(1, 40).map(lambda n: n / 4)


@st.composite
def arguments(draw):
    schedule = draw(st.sampled_from(pipeline.SCHEDULES))
    stages = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 4)) if schedule == "interleaved-1f1b" else 1
    held = 2 if schedule in ("zb-v", "dualpipe-v") else chunks
    if schedule == "interleaved-1f1b":
        micro_batches = stages * draw(st.integers(1, 4))
    else:
        micro_batches = draw(st.integers(1, 14))
    per_chunk = stages * held

    def times(values):
        return draw(
            st.one_of(
                values.map(lambda x: x * held), st.lists(values, min_size=per_chunk, max_size=per_chunk)
            )
        )

    transfer = draw(
        st.one_of(
            QUARTERS, st.lists(QUARTERS, min_size=max(per_chunk - 1, 0), max_size=max(per_chunk - 1, 0))
        )
    )
    return {
        "schedule": schedule,
        "stages": stages,
        "micro_batches": micro_batches,
        "forward_s": times(POSITIVE),
        "backward_input_s": times(QUARTERS),
        "backward_weight_s": times(QUARTERS),
        "transfer_s": transfer,
        "chunks": chunks,
    }


def _chunk_seconds(value, held, per_chunk):
    return list(value) if isinstance(value, list) else [value / held] * per_chunk


def _held(case):
    return 2 if case["schedule"] in ("zb-v", "dualpipe-v") else case["chunks"]


def _hops(case, run):
    """Seconds between each model chunk and the next, worked out from where the operations ran."""
    where = {operation.stage: operation.rank for operation in run.operations}
    transfer = case["transfer_s"]
    given_s = transfer if isinstance(transfer, list) else [transfer] * (len(where) - 1)
    return [seconds if where[stage] != where[stage + 1] else 0.0 for stage, seconds in enumerate(given_s)]


@settings(max_examples=150, deadline=None)
@given(arguments())
def test_every_operation_runs_once_for_its_time_on_its_rank(case):
    run = pipeline.simulate(**case)
    p, m, v = case["stages"], case["micro_batches"], _held(case)
    seen = sorted([(o.kind, o.stage, o.micro_batch) for o in run.operations])
    assert seen == sorted([(k, s, b) for k in "FBW" for s in range(p * v) for b in range(m)])
    seconds = {
        kind: _chunk_seconds(case[name], v, p * v)
        for kind, name in (("F", "forward_s"), ("B", "backward_input_s"), ("W", "backward_weight_s"))
    }
    for o in run.operations:
        assert o.duration_s == seconds[o.kind][o.stage]
        in_v = case["schedule"] in ("zb-v", "dualpipe-v")
        assert o.rank == (min(o.stage, 2 * p - 1 - o.stage) if in_v else o.stage % p)


@settings(max_examples=150, deadline=None)
@given(arguments())
def test_no_rank_does_two_things_at_once_and_none_starts_before_its_inputs(case):
    run = pipeline.simulate(**case)
    hops = _hops(case, run)
    last = case["stages"] * _held(case) - 1
    done = {(o.kind, o.stage, o.micro_batch): o for o in run.operations}
    for rank in range(case["stages"]):
        mine = [o for o in run.operations if o.rank == rank]
        for before, after in pairwise(mine):
            assert after.start_s >= before.end_s
    for o in run.operations:
        assert o.end_s <= o.leaves_s
        if o.kind == "F" and o.stage:
            source = done["F", o.stage - 1, o.micro_batch]
            assert o.start_s >= source.leaves_s + hops[o.stage - 1]
        if o.kind == "B":
            assert o.start_s >= done["F", o.stage, o.micro_batch].end_s
            if o.stage < last:
                source = done["B", o.stage + 1, o.micro_batch]
                assert o.start_s >= source.leaves_s + hops[o.stage]
        if o.kind == "W":
            assert o.start_s >= done["B", o.stage, o.micro_batch].end_s


@settings(max_examples=150, deadline=None)
@given(arguments())
def test_nothing_waits_longer_than_it_must(case):
    """Every start is either the end of the work before it on the rank or the arrival of an input: no slack."""
    run = pipeline.simulate(**case)
    hops = _hops(case, run)
    done = {(o.kind, o.stage, o.micro_batch): o for o in run.operations}
    last = case["stages"] * _held(case) - 1
    free = [0.0] * case["stages"]
    for o in run.operations:
        if o.start_s != free[o.rank]:
            # It waited, so it is the first of its entry, whose operations share the moment their results leave.
            entry = [
                x
                for x in run.operations
                if x.rank == o.rank and x.leaves_s == o.leaves_s and x.start_s >= o.start_s
            ]
            arrivals = []
            for x in entry:
                if x.kind == "F" and x.stage:
                    arrivals.append(done["F", x.stage - 1, x.micro_batch].leaves_s + hops[x.stage - 1])
                if x.kind == "B" and x.stage < last:
                    arrivals.append(done["B", x.stage + 1, x.micro_batch].leaves_s + hops[x.stage])
            assert o.start_s in arrivals
        free[o.rank] = o.end_s


@settings(max_examples=150, deadline=None)
@given(arguments())
def test_time_is_conserved_and_bounds_hold(case):
    run = pipeline.simulate(**case)
    p, m, v = case["stages"], case["micro_batches"], _held(case)
    work = [0.0] * p
    for o in run.operations:
        work[o.rank] += o.duration_s
    assert run.busy_s == pytest.approx(work)
    assert [busy + idle for busy, idle in zip(run.busy_s, run.idle_s, strict=True)] == pytest.approx(
        [run.makespan_s] * p
    )
    gaps = [0.0] * p
    for gap in run.idle_gaps:
        gaps[gap.rank] += gap.duration_s
    assert gaps == pytest.approx(list(run.idle_s), abs=1e-6 * run.makespan_s)
    assert 0 <= run.bubble_of_total < 1
    assert run.bubble_of_ideal == pytest.approx(run.bubble_of_total / (1 - run.bubble_of_total))
    # Lower bounds: the busiest rank; one micro-batch all the way there and back.
    forward = _chunk_seconds(case["forward_s"], v, p * v)
    backward = _chunk_seconds(case["backward_input_s"], v, p * v)
    hops = _hops(case, run)
    assert run.makespan_s >= max(run.busy_s) - 1e-9
    assert run.makespan_s >= sum(forward) + sum(backward) + 2 * sum(hops) - 1e-9
    assert max(run.busy_s) - 1e-9 <= run.longest_stage_span_s <= run.makespan_s
    spans = []
    for rank in range(p):
        mine = [o for o in run.operations if o.rank == rank]
        spans.append(mine[-1].end_s - mine[0].start_s)
    assert run.longest_stage_span_s == max(spans)
    longest = spans.index(max(spans))
    assert run.bubble_of_longest_span == pytest.approx(1 - work[longest] / spans[longest], abs=1e-12)
    assert all(0 < peak <= m for peak in run.in_flight_peak)


@settings(max_examples=150, deadline=None)
@given(arguments(), st.data())
def test_more_time_anywhere_never_shortens_the_step(case, data):
    before = pipeline.simulate(**case).makespan_s
    name = data.draw(st.sampled_from(["forward_s", "backward_input_s", "backward_weight_s", "transfer_s"]))
    slower = dict(case)
    extra = data.draw(POSITIVE)
    if isinstance(case[name], list):
        slower[name] = list(case[name])
        if slower[name]:
            slower[name][data.draw(st.integers(0, len(slower[name]) - 1))] += extra
    else:
        slower[name] = case[name] + extra
    assert pipeline.simulate(**slower).makespan_s >= before


@settings(max_examples=60, deadline=None)
@given(arguments(), st.integers(2, 7))
def test_time_has_no_unit(case, factor):
    """Scaling every time by a power of two scales the makespan and leaves the ratios alone."""
    scale = 2.0**factor
    scaled = dict(case)
    for name in ("forward_s", "backward_input_s", "backward_weight_s", "transfer_s"):
        value = case[name]
        scaled[name] = [x * scale for x in value] if isinstance(value, list) else value * scale
    one, other = pipeline.simulate(**case), pipeline.simulate(**scaled)
    assert other.makespan_s == one.makespan_s * scale
    assert other.bubble_of_total == one.bubble_of_total
    assert other.in_flight_peak == one.in_flight_peak


@settings(max_examples=100, deadline=None)
@given(arguments())
def test_critical_path_adds_up_to_the_makespan(case):
    run = pipeline.simulate(**case)
    path = run.critical_path
    hops = _hops(case, run)
    assert path[0].start_s == 0
    assert path[-1].end_s == run.makespan_s
    total = sum(o.duration_s for o in path)
    for before, after in pairwise(path):
        gap = after.start_s - before.end_s
        if before.rank == after.rank:
            assert gap == 0
        else:
            assert before.leaves_s == before.end_s
            assert gap in hops
            total += gap
    assert total == run.makespan_s


@settings(max_examples=100, deadline=None)
@given(arguments())
def test_activation_timeline_agrees_with_the_peak_and_ends_empty(case):
    run = pipeline.simulate(**case)
    for rank in range(case["stages"]):
        amounts = [amount for _, amount in run.activation_timeline(rank)]
        times = [when for when, _ in run.activation_timeline(rank)]
        assert times == sorted(set(times))
        assert max(amounts) <= run.in_flight_peak[rank]
        assert amounts[-1] == 0
        assert min(amounts) >= 0
        # All of it kept until W is the most that can be kept, none of it the least.
        assert (
            run.activation_peak(1, 0)[rank] <= run.activation_peak(1, 0.5)[rank] <= run.in_flight_peak[rank]
        )


@settings(max_examples=60, deadline=None)
@given(arguments())
def test_a_schedule_written_out_runs_the_same(case):
    run = pipeline.simulate(**case)
    held = _held(case)
    orders = pipeline.schedule_operations(
        case["schedule"], case["stages"], case["micro_batches"], case["chunks"]
    )
    times = (case["forward_s"], case["backward_input_s"], case["backward_weight_s"])
    placement = "v" if case["schedule"] in ("zb-v", "dualpipe-v") else "loop"
    again = pipeline.execute(orders, times, case["transfer_s"], held, placement)
    assert again.operations == run.operations
    assert again.makespan_s == run.makespan_s


@settings(max_examples=60, deadline=None)
@given(arguments(), st.data())
def test_any_order_of_ranks_is_either_run_or_refused_with_a_reason(case, data):
    """Shuffle one rank's list: the executor never hangs, and what it accepts keeps every dependency."""
    chunks = _held(case)
    orders = pipeline.schedule_operations(
        case["schedule"], case["stages"], case["micro_batches"], case["chunks"]
    )
    rank = data.draw(st.integers(0, case["stages"] - 1))
    orders[rank] = data.draw(st.permutations(orders[rank]))
    placement = "v" if case["schedule"] in ("zb-v", "dualpipe-v") else "loop"
    problems = pipeline.schedule_problems(orders, chunks, placement)
    if problems:
        with pytest.raises(pipeline.ScheduleError) as caught:
            pipeline.execute(orders, (1, 1, 1), chunks=chunks, placement=placement)
        assert caught.value.problems == problems
    else:
        run = pipeline.execute(orders, (1, 1, 1), chunks=chunks, placement=placement)
        done = {(o.kind, o.stage, o.micro_batch): o for o in run.operations}
        for o in run.operations:
            if o.kind == "F" and o.stage:
                assert o.start_s >= done["F", o.stage - 1, o.micro_batch].leaves_s
            if o.kind == "B" and ("B", o.stage + 1, o.micro_batch) in done:
                assert o.start_s >= done["B", o.stage + 1, o.micro_batch].leaves_s

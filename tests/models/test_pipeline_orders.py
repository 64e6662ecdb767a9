"""Schedules written by hand: what is legal, what is reported, and how a run explains itself."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from shardlab.models import pipeline
from shardlab.models.pipeline_executor import pipeline_model, run_orders
from shardlab.models.pipeline_orders import read_orders

# --- the rules of the generators, written out for sizes one can check by eye ---


def written(schedule, stages, micro_batches, chunks=1):
    return [
        " ".join(order) for order in pipeline.schedule_operations(schedule, stages, micro_batches, chunks)
    ]


def test_gpipe_and_1f1b_orders():
    assert written("gpipe", 2, 2) == ["F0 F1 B0 B1"] * 2
    assert written("1f1b", 3, 4) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_interleaved_order_goes_round_the_chunks_p_micro_batches_at_a_time():
    first, second = written("interleaved-1f1b", 2, 4, 2)
    assert first == "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"
    assert second.startswith("F0.0 F1.0 F0.1 B0.1 F1.1 ")


def test_zb_h1_delays_w_by_the_rank_and_zb_h2_by_twice_that():
    h1 = written("zb-h1", 3, 4)
    assert h1[0] == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert h1[2] == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"
    h2 = written("zb-h2", 3, 6)
    assert h2[0].startswith("F0 F1 F2 F3 F4 B0 W0 ")
    assert h2[1].startswith("F0 F1 F2 B0 F3 B1 F4 B2 W0 ")


def test_v_schedules_turn_round_on_the_last_rank():
    zb = pipeline.schedule_operations("zb-v", 2, 3)
    assert zb[1][:4] == ["F0.0", "F0.1", "F1.0", "F1.1"]
    run = pipeline.simulate("zb-v", 2, 3, 1, 1, 1)
    assert [(o.stage, o.rank) for o in run.operations if o.kind == "F" and o.micro_batch == 0] == [
        (0, 0),
        (3, 0),
        (1, 1),
        (2, 1),
    ]
    dual = pipeline.schedule_operations("dualpipe-v", 2, 4)
    assert "F3.0+B1.1+W1.1" in dual[0]
    assert "B0.1+W0.1" in dual[1]  # the last rank runs its first pair apart


# --- your own schedule ---


def test_your_own_schedule_in_every_notation():
    text = pipeline.execute(["F0 F1 B0 B1", "F0 B0 F1 B1"], (1, 1, 1))
    lists = pipeline.execute([["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]], (1, 1, 1))
    joined = pipeline.execute(["F0 F1 B0+W0 B1+W1", "F0 B0+W0 F1 B1+W1"], (1, 1, 1))
    tuples = pipeline.execute(
        [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0, 0), ("F", 1), ["B", 1]]], (1, 1, 1)
    )
    assert text.operations == lists.operations == joined.operations == tuples.operations
    assert text.makespan_s == pipeline.simulate("1f1b", 2, 2, 1, 1, 1).makespan_s
    assert text.schedule == "custom"


def test_splitting_the_backward_lets_the_gradient_leave_sooner():
    whole = pipeline.execute(["F0 B0+W0", "F0 B0+W0"], (1, 1, 1))
    split = pipeline.execute(["F0 B0 W0", "F0 B0 W0"], (1, 1, 1))
    assert (whole.makespan_s, split.makespan_s) == (6, 5)


def test_backwards_need_not_run_in_the_order_of_the_forwards():
    run = pipeline.execute(["F0 F1 B1 B0", "F0 F1 B1 B0"], (1, 1, 1))
    assert run.makespan_s == pipeline.simulate("gpipe", 2, 2, 1, 1, 1).makespan_s


@pytest.mark.parametrize(
    ("orders", "problem"),
    [
        (["F0 F1 B0", "F0 B0 F1 B1"], "rank 0: B1 is missing"),
        (["F0 F0 B0", "F0 B0"], "rank 0: F0 occurs twice"),
        (["F0 B0", "B0 F0"], "rank 1: B0 stands before F0"),
        (["F0 W0 B0", "F0 B0 W0"], "rank 0: W0 stands before B0"),
        (["F0 B0 W0 F1 B1", "F0 B0 W0 F1 B1 W1"], "rank 0: W1 is missing"),
        (["F0 G0", "F0 B0"], "rank 0, position 1: 'G0' is not an operation"),
        (["F0 B", "F0 B0"], "'B' is not an operation"),
        (["F0 F-1", "F0 B0"], "'F-1' is not an operation"),
        ([[("F", 0), ("B", 0.5)], "F0 B0"], "is not an operation"),
        ([[("F", True)], "F0 B0"], "is not an operation"),
        ([["F0", None], "F0 B0"], "None is not an operation"),
        (["F0.1 B0.1", "F0 B0"], "names chunk 1, but chunks=1 allows 0 to 0"),
        (["F0 B0 F9 B9", "F0 B0 F9 B9"], "micro-batch 9 is mentioned"),
        ([3, "F0 B0"], "rank 0: 3 is not a list of operations"),
        (["", ""], "there are no operations"),
    ],
)
def test_illegal_schedules_are_named(orders, problem):
    found = pipeline.schedule_problems(orders)
    assert any(problem in text for text in found), found
    with pytest.raises(pipeline.ScheduleError) as caught:
        pipeline.execute(orders, (1, 1, 1))
    assert isinstance(caught.value, ValueError)
    assert caught.value.problems == found


def test_micro_batches_can_be_fixed():
    missing = ["rank 0: F1 is missing", "rank 0: B1 is missing"]
    assert pipeline.schedule_problems(["F0 B0"], micro_batches=2) == missing
    assert pipeline.schedule_problems(["F0 B0 W0"], micro_batches=2) == [*missing, "rank 0: W1 is missing"]
    beyond = pipeline.schedule_problems(["F0 B0 F1 B1"], micro_batches=1)
    assert beyond[0] == "rank 0: F1 is beyond the 1 micro-batches (0 to 0)"


def test_a_long_list_of_problems_is_cut_in_the_message_only():
    orders = [" ".join([f"F{batch}" for batch in range(30)])]
    with pytest.raises(pipeline.ScheduleError, match="and 20 more") as caught:
        pipeline.execute(orders, (1, 1, 1))
    assert len(caught.value.problems) == 30


def test_deadlock_is_told_as_a_cycle():
    orders = ["F0 B0 F1 B1", "F0 F1 B0 B1"]
    (problem,) = pipeline.schedule_problems(orders)
    assert problem == (
        "deadlock: rank 0 stands at B0 and waits for the B0 that rank 1 lists only after its F1; "
        "rank 1 stands at F1 and waits for the F1 that rank 0 lists only after its B0; so none of them can go on"
    )
    with pytest.raises(pipeline.ScheduleError, match="rank 1 stands at F1"):
        pipeline.execute(orders, (1, 1, 1))


def test_deadlock_names_only_the_ranks_of_the_cycle():
    # Rank 0 hangs too, but only because ranks 1 and 2 wait for each other.
    orders = ["F0 F1 B0 B1", "F0 B0 F1 B1", "F0 F1 B0 B1"]
    (problem,) = pipeline.schedule_problems(orders)
    assert "rank 1 stands at B0" in problem
    assert "rank 2 stands at F1" in problem
    assert "rank 0" not in problem


def test_deadlock_with_split_backwards_and_with_a_pair():
    (split,) = pipeline.schedule_problems(["F0 B0 F1 B1 W0 W1", "F0 F1 B0 B1 W0 W1"])
    assert "stands at B0 and waits for the B0 that rank 1 lists only after its F1" in split
    (itself,) = pipeline.schedule_problems(["F0.0+F0.1 B0.1 B0.0"], chunks=2, placement="v")
    assert (
        "rank 0 stands at F0.0+F0.1 and waits for the F0.0 that rank 0 lists joined with its F0.0+F0.1"
        in itself
    )


def test_execute_checks_its_other_arguments():
    with pytest.raises(ValueError, match="chunks must be 2 for placement='v', not 1"):
        pipeline.execute(["F0 B0"], (1, 1, 1), placement="v")
    with pytest.raises(ValueError, match="placement must be one of 'loop', 'v', not 'ring'"):
        pipeline.execute(["F0 B0"], (1, 1, 1), placement="ring")
    with pytest.raises(ValueError, match="times must be"):
        pipeline.execute(["F0 B0"], (1, 1))
    with pytest.raises(
        ValueError, match="orders must be a list with one list of operations per rank, not 'F0 B0'"
    ):
        pipeline.execute("F0 B0", (1, 1, 1))
    with pytest.raises(ValueError, match="orders must be"):
        pipeline.execute([], (1, 1, 1))


def test_the_executor_looks_at_every_entry_at_most_twice():
    """Linear time without a clock: count how often the executor reads an entry."""

    class Counted(list):
        reads = 0

        def __getitem__(self, index):
            Counted.reads += 1
            return super().__getitem__(index)

    for stages, micro_batches in ((4, 8), (16, 64), (8, 256)):
        text = pipeline.schedule_operations("zb-h1", stages, micro_batches)
        orders, _, problems = read_orders(text, 1)
        assert not problems
        Counted.reads = 0
        counted = [Counted(order) for order in orders]
        run_orders(counted, pipeline_model(stages, micro_batches, 1, "loop", (1, 2, 1), 0.5))
        operations = 3 * stages * micro_batches
        assert operations <= Counted.reads <= 2 * operations


# --- explanations ---


def test_gaps_of_gpipe_are_warm_up_turn_around_and_cool_down():
    run = pipeline.simulate("gpipe", 3, 4, 1, 1, 1)
    phases = {rank: [gap.phase for gap in run.idle_gaps if gap.rank == rank] for rank in range(3)}
    assert phases == {
        0: ["turn-around"],
        1: ["warm-up", "turn-around", "cool-down"],
        2: ["warm-up", "cool-down"],
    }
    assert [gap.duration_s for gap in run.idle_gaps if gap.rank == 0] == [6]


def test_gaps_of_1f1b_with_a_transfer_say_who_waits_for_whom():
    run = pipeline.simulate("1f1b", 4, 6, 1, 1, 1, 0.1)
    texts = [gap.explanation for gap in run.idle_gaps]
    assert texts[0] == (
        "stage 0 waits 6.6 s for the backward of micro-batch 0 from stage 1, which itself waited for the backward of "
        "micro-batch 0 from stage 2, and so on back to stage 3, which had the forward of micro-batch 0 to run first; "
        "100 ms of the wait is the transfer (warm-up)"
    )
    assert (
        "stage 3 waits 200 ms for the forward of micro-batch 2 from stage 2, which had the backward of micro-batch 0 to "
        "run first; 100 ms of the wait is the transfer (steady)"
    ) in texts
    assert "stage 3 has done its work 6.3 s before stage 0 ends the training step (cool-down)" in texts
    steady = [gap for gap in run.idle_gaps if gap.phase == "steady"]
    assert all(gap.waits_for is not None and gap.waits_for.kind == "F" for gap in steady)


def test_a_gap_points_at_the_operation_that_ends_it():
    for schedule in pipeline.SCHEDULES:
        run = pipeline.simulate(schedule, 4, 8, 1, 1.5, 0.5, 0.25)
        for gap in run.idle_gaps:
            if gap.waits_for is None:
                assert gap.end_s == run.makespan_s
            else:
                assert gap.waits_for.leaves_s in (gap.end_s, gap.end_s - 0.25)
                assert f"micro-batch {gap.waits_for.micro_batch}" in gap.explanation
            assert gap.phase in gap.explanation


def test_the_first_stage_waits_for_nobody_at_the_start():
    run = pipeline.simulate("1f1b", 2, 2, 1, 1, 1)
    (first,) = [gap for gap in run.idle_gaps if gap.rank == 1 and gap.start_s == 0]
    assert first.explanation == (
        "stage 1 waits 1 s for the forward of micro-batch 0 from stage 0, where the run begins (warm-up)"
    )


def test_pairs_are_explained():
    texts = [gap.explanation for gap in pipeline.simulate("dualpipe-v", 3, 6, 1, 1, 1).idle_gaps]
    assert any(
        "it leaves together with the backward of micro-batch 0 that it is paired with" in text
        for text in texts
    )
    assert any("for the input gradient of micro-batch" in text for text in texts)


def test_a_joined_entry_waits_for_the_input_that_comes_last():
    # The middle stage joins F1 (its input is there at 2 s) with B0 (its input comes at 5 s).
    run = pipeline.execute(["F0 F1 B0 B1", "F0 F1+B0 B1", "F0 B0 F1 B1"], (1, 1, 1))
    (gap,) = [gap for gap in run.idle_gaps if gap.rank == 1 and gap.start_s == 2]
    assert (gap.end_s, gap.phase) == (5, "warm-up")
    assert gap.explanation.startswith("stage 1 waits 3 s for the backward of micro-batch 0 from stage 2")
    path = [(o.rank, o.kind, o.micro_batch) for o in run.critical_path]
    assert path[:5] == [(0, "F", 0), (1, "F", 0), (2, "F", 0), (2, "B", 0), (2, "W", 0)]
    # Stage 2 gets F1 only when B0 and W0 of the middle stage are done too.
    assert [o.start_s for o in run.operations if (o.rank, o.kind, o.micro_batch) == (2, "F", 1)] == [8]


def test_critical_path_of_1f1b_on_two_stages():
    run = pipeline.simulate("1f1b", 2, 2, 1, 1, 1)
    path = [(o.rank, o.kind, o.micro_batch) for o in run.critical_path]
    assert path == [
        (0, "F", 0),
        (1, "F", 0),
        (1, "B", 0),
        (1, "W", 0),
        (1, "F", 1),
        (1, "B", 1),
        (1, "W", 1),
        (0, "B", 1),
        (0, "W", 1),
    ]


def test_lengthening_a_stage_on_the_critical_path_lengthens_the_step():
    run = pipeline.simulate("zb-h1", 4, 8, [1, 1, 2, 1], 1, 1)
    ranks = {o.rank for o in run.critical_path if o.kind == "F"}
    for rank in ranks:
        slower = [1, 1, 2, 1]
        slower[rank] += 0.5
        assert pipeline.simulate("zb-h1", 4, 8, slower, 1, 1).makespan_s > run.makespan_s


# --- trace ---


@pytest.mark.parametrize("schedule", pipeline.SCHEDULES)
def test_chrome_trace_is_what_perfetto_reads(schedule):
    run = pipeline.simulate(
        schedule, 4, 8, 0.002, 0.002, 0.001, 0.0005, 2 if schedule == "interleaved-1f1b" else 1
    )
    trace = json.loads(json.dumps(pipeline.chrome_trace(run)))
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["name"], str)
        assert event["pid"] == 0
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] > 0
            assert event["tid"] in range(4)
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["rank 0", "rank 1", "rank 2", "rank 3"]
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) == len(run.operations)
    # Microseconds, and on one thread no event begins before the last one ends.
    assert max(event["ts"] + event["dur"] for event in complete) == pytest.approx(run.makespan_s * 1e6)
    for rank in range(4):
        mine = sorted([(event["ts"], event["dur"]) for event in complete if event["tid"] == rank])
        for (start, length), (following, _) in pairwise(mine):
            assert following >= start + length - 1e-6
    counters = [event["args"]["in flight"] for event in events if event["ph"] == "C"]
    assert max(counters) == max(run.in_flight_peak)


def test_chrome_trace_leaves_out_what_takes_no_time():
    events = pipeline.chrome_trace(pipeline.simulate("1f1b", 2, 2, 1, 1, 0))["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"forward", "input gradient"}

"""The orders that ``torch.distributed.pipelining`` generates, beside ours. No process group: the lists only."""

from __future__ import annotations

import pytest

from shardlab.models import pipeline

pytest.importorskip("torch", reason="compares with torch.distributed.pipelining")

from torch.distributed.pipelining import schedules

NAMES = {"FORWARD": "F{0}", "BACKWARD_INPUT": "B{0}", "BACKWARD_WEIGHT": "W{0}", "FULL_BACKWARD": "B{0}+W{0}"}


def _bare(schedule_class, stages, micro_batches, held):
    """A schedule object without stages or process group: only what its order is made from."""
    schedule = object.__new__(schedule_class)
    schedule.pp_group_size = stages
    schedule.n_local_stages = held
    schedule._num_stages = schedule.num_stages = stages * held
    schedule._n_microbatches = micro_batches
    return schedule


def _text(action, stages, held, in_v):
    """One torch action in our notation; a pair of overlapped actions is joined."""
    parts = []
    for part in action.sub_actions or (action,):
        if part.computation_type.name not in NAMES:
            return None
        chunk = (0 if part.stage_index < stages else 1) if in_v else part.stage_index // stages
        number = str(part.microbatch_index) if held == 1 else f"{part.microbatch_index}.{chunk}"
        parts.append(NAMES[part.computation_type.name].format(number))
    return "+".join(parts)


def _order(actions, stages, held, in_v=False):
    texts = [_text(action, stages, held, in_v) for action in actions if action is not None]
    return [text for text in texts if text is not None]


def _with_weights(order):
    """Our gpipe, 1f1b and interleaved orders leave out the W of a whole backward; torch's action names both."""
    return [text if text[0] == "F" else f"{text}+W{text[1:]}" for text in order]


SIZES = [(2, 4), (2, 5), (3, 6), (4, 8), (4, 9), (4, 20), (8, 16), (8, 33)]


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_gpipe_is_torch_s(stages, micro_batches):
    theirs = _bare(schedules.ScheduleGPipe, stages, micro_batches, 1)._get_pipeline_order()
    for rank, order in enumerate(pipeline.schedule_operations("gpipe", stages, micro_batches)):
        assert _with_weights(order) == _order(theirs[rank], stages, 1)


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_1f1b_is_torch_s(stages, micro_batches):
    theirs = _bare(schedules.Schedule1F1B, stages, micro_batches, 1)._get_pipeline_order()
    for rank, order in enumerate(pipeline.schedule_operations("1f1b", stages, micro_batches)):
        found = _order(theirs[rank], stages, 1)
        if rank < stages - 1:
            assert _with_weights(order) == found
        else:
            # torch 2.13 numbers the last rank's forwards from 1 in this listing; the kinds agree.
            assert [text[0] for text in order] == [text[0] for text in found]


@pytest.mark.parametrize("held", [2, 3])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (3, 6), (4, 4), (4, 8), (4, 20), (8, 16)])
def test_interleaved_1f1b_is_torch_s(stages, micro_batches, held):
    theirs = _bare(schedules.ScheduleInterleaved1F1B, stages, micro_batches, held)
    theirs.microbatches_per_round = stages
    for rank, order in enumerate(
        pipeline.schedule_operations("interleaved-1f1b", stages, micro_batches, held)
    ):
        found = _order(theirs._calculate_single_rank_operations(rank), stages, held)
        assert _with_weights(order) == found


@pytest.mark.parametrize(("stages", "micro_batches"), [*SIZES, (1, 3), (4, 3), (4, 6)])
def test_zb_v_is_torch_s(stages, micro_batches):
    theirs = _bare(schedules.ScheduleZBVZeroBubble, stages, micro_batches, 2)
    for rank, order in enumerate(pipeline.schedule_operations("zb-v", stages, micro_batches)):
        assert order == _order(theirs._calculate_single_rank_operations(rank), stages, 2, in_v=True)


@pytest.mark.parametrize(("stages", "micro_batches"), [*SIZES, (1, 3), (5, 10)])
def test_dualpipe_v_is_torch_s(stages, micro_batches):
    theirs = _bare(schedules.ScheduleDualPipeV, stages, micro_batches, 2)
    for rank, order in enumerate(pipeline.schedule_operations("dualpipe-v", stages, micro_batches)):
        assert order == _order(theirs._calculate_single_rank_operations(rank), stages, 2, in_v=True)

"""Assignment 04: shard the optimizer."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
P, N, G = numbers.n_params, numbers.n_ranks, numbers.micro_batches
stage_1_bytes = P * (2 + 2 + 12 / N)
stage_2_bytes = P * (2 + (2 + 12) / N)
stage_3_bytes = P * (2 + 2 + 12) / N
room = numbers.memory_bytes - numbers.other_bytes
if 16 * P <= room:
    lowest_stage = 0
elif stage_1_bytes <= room:
    lowest_stage = 1
elif stage_2_bytes <= room:
    lowest_stage = 2
else:
    lowest_stage = 3
sent_1_bytes = 4 * P * (1 - 1 / N)
sent_2_bytes = 2 * P * (1 - 1 / N) * (G + 1)
"""

FLATTEN = """
def flatten(tensors, n_ranks):
    length = sum(t.numel() for t in tensors)
    padded = (length + n_ranks - 1) // n_ranks * n_ranks
    flat = torch.zeros(padded, dtype=tensors[0].dtype)
    at = 0
    for t in tensors:
        flat[at:at + t.numel()] = t.data.flatten()
        at += t.numel()
    return flat
"""

COPY_BACK = """
@torch.no_grad()
def copy_back(flat, tensors):
    at = 0
    for t in tensors:
        t.copy_(flat[at:at + t.numel()].reshape(t.shape))
        at += t.numel()
"""

MEAN = """
def mean_of_my_shard(flat):
    n = dist.get_world_size()
    everyone = torch.empty_like(flat)
    dist.all_to_all_single(everyone, flat)
    return everyone.reshape(n, -1).sum(dim=0) / n
"""

STATE = """
def new_state(parameters):
    numbers = sum(p.numel() for p in parameters)
    shard = -(-numbers // dist.get_world_size())
    return {"m": torch.zeros(shard), "v": torch.zeros(shard)}
"""

GATHER = """
def update_and_gather(parameters, gradient, state, step):
    n, r = dist.get_world_size(), dist.get_rank()
    whole = flatten(parameters, n)
    size = len(whole) // n
    shard = whole[r * size:(r + 1) * size].clone()
    adam_step(shard, gradient, state["m"], state["v"], step)
    dist.all_gather(list(whole.chunk(n)), shard)
    copy_back(whole, parameters)
"""

ZERO1 = """
def zero1_step(parameters, state, step):
    gradients = flatten([p.grad for p in parameters], dist.get_world_size())
    update_and_gather(parameters, mean_of_my_shard(gradients), state, step)
"""

ACCUMULATE = """
def zero2_accumulate(parameters, state):
    gradients = flatten([p.grad for p in parameters], dist.get_world_size())
    shard = mean_of_my_shard(gradients)
    if "gradient" in state:
        state["gradient"] += shard
    else:
        state["gradient"] = shard
    for p in parameters:
        p.grad = None
"""

ZERO2 = """
def zero2_step(parameters, state, step, n_micro_batches):
    update_and_gather(parameters, state["gradient"] / n_micro_batches, state, step)
    del state["gradient"]
"""

EXPLAINED = "10 bytes instead of 16. gloo's reduce-scatter is an all-reduce. Stage 2 would send 33 passes."

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": FLATTEN + COPY_BACK,
    "task-3-code": MEAN + STATE + GATHER + ZERO1,
    "task-4-code": ACCUMULATE + ZERO2,
    "task-5-answer": EXPLAINED,
}
FULL = (6, 4, 8, 7, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Forgets the master copy (K = 8), and lets stage 1 reduce after each micro-batch.
    "reduces_too_often": Submission(
        changed(
            task_1_answer=BY_HAND.replace("(2 + 2 + 12 / N)", "(2 + 2 + 8 / N)").replace(
                "sent_1_bytes = 4 * P", "sent_1_bytes = 4 * G * P"
            )
        ),
        (4, 4, 8, 7, 0),
        (
            "the fp32 master copy of the parameters is missing: K = 12, not 8",
            "stage 1 reduces once per step, after the last micro-batch",
        ),
    ),
    # Doesn't pad: the shards of the last rank would be shorter. Tasks 3 and 4 are marked with a flatten that does.
    "no_padding": Submission(
        changed(
            task_2_code="""
def flatten(tensors, n_ranks):
    return torch.cat([t.data.flatten() for t in tensors])
"""
            + COPY_BACK
        ),
        (6, 1, 8, 7, 0),
        ("must have the shape (24,), not (22,): add zeros at the end until the ranks divide it",),
    ),
    # Writes into parameters while autograd watches.
    "writes_into_a_leaf": Submission(
        changed(task_2_code=FLATTEN + COPY_BACK.replace("@torch.no_grad()\n", "")),
        (6, 1, 8, 7, 0),
        ("inside `with torch.no_grad():` it may",),
    ),
    # The sum of the gradients for their mean. Adam hides most of it; with the usual epsilon it would hide all.
    "sum_for_mean": Submission(
        changed(task_3_code=(MEAN.replace(" / n\n", "\n") + STATE + GATHER + ZERO1)),
        (6, 4, 2, 7, 0),
        (
            "it gives the sum over the ranks: divide by their number",
            "plain Adam with the sum of the gradients, where the mean belongs",
        ),
    ),
    # Shards the work and not the memory: moments of all parameters, of which a rank uses its part.
    "moments_of_everything": Submission(
        changed(
            task_3_code=MEAN
            + STATE.replace("-(-numbers // dist.get_world_size())", "numbers + 3")
            + GATHER
            + """
def zero1_step(parameters, state, step):
    n, r = dist.get_world_size(), dist.get_rank()
    gradient = mean_of_my_shard(flatten([p.grad for p in parameters], n))
    mine = slice(r * len(gradient), (r + 1) * len(gradient))
    update_and_gather(parameters, gradient, {"m": state["m"][mine], "v": state["v"][mine]}, step)
"""
        ),
        (6, 4, 7, 7, 0),
        ("are these for all 22 numbers of the model?",),
    ),
    # Cuts the moments out of a long tensor: a view of a third keeps all of it alive.
    "a_slice_keeps_the_whole": Submission(
        changed(
            task_3_code=MEAN
            + """
def new_state(parameters):
    n, r = dist.get_world_size(), dist.get_rank()
    length = len(flatten(parameters, n))
    return {"m": torch.zeros(length).chunk(n)[r], "v": torch.zeros(length).chunk(n)[r]}
"""
            + GATHER
            + ZERO1
        ),
        (6, 4, 7, 7, 0),
        ("a slice is a view, and keeps the whole buffer alive",),
    ),
    # All-reduces the gradients and throws most of them away: right, for three passes.
    "all_reduce_and_slice": Submission(
        changed(
            task_3_code="""
def mean_of_my_shard(flat):
    n, r = dist.get_world_size(), dist.get_rank()
    whole = flat.clone()
    dist.all_reduce(whole)
    return whole.chunk(n)[r] / n
"""
            + STATE
            + GATHER
            + ZERO1
        ),
        (6, 4, 7, 7, 0),
        ("one step sends 3 passes over the parameters, not 2", "an all-reduce is two passes"),
    ),
    # Updates its own shard and keeps it to itself: the ranks' parameters drift apart.
    "never_gathers": Submission(
        changed(
            task_3_code=MEAN
            + STATE
            + GATHER.replace(
                "dist.all_gather(list(whole.chunk(n)), shard)", "whole[r * size:(r + 1) * size] = shard"
            )
            + ZERO1
        ),
        (6, 4, 4, 3, 0),
        ("only this rank's own shard has changed: the other shards' new numbers never arrived here",),
    ),
    # Replaces the sum of the micro-batches by the last one.
    "last_micro_batch_only": Submission(
        changed(
            task_4_code=ACCUMULATE.replace('state["gradient"] += shard', 'state["gradient"] = shard').replace(
                "\n    else:", "\n    if True:"
            )
            + ZERO2.replace(' / n_micro_batches, state, step)\n    del state["gradient"]', ", state, step)")
        ),
        (6, 4, 8, 4, 0),
        ("only the last micro-batch counts: add to what is there, don't replace it",),
    ),
    # Keeps whole gradients until the last micro-batch: that is stage 1.
    "still_stage_1": Submission(
        changed(
            task_4_code=ACCUMULATE.replace("shard = mean_of_my_shard(gradients)", "shard = gradients")
            + """
def zero2_step(parameters, state, step, n_micro_batches):
    shard = mean_of_my_shard(state.pop("gradient"))
    update_and_gather(parameters, shard / n_micro_batches, state, step)
"""
        ),
        (6, 4, 8, 5, 0),
        ("the state holds 160 bytes; 3 fp32 numbers for each of the shard's are 96 bytes",),
    ),
    # Never empties the sum: every step drags the gradients of those before along.
    "old_gradients_stay": Submission(
        changed(task_4_code=ACCUMULATE + ZERO2.replace('    del state["gradient"]\n', "")),
        (6, 4, 8, 3, 0),
        ("a step starts with the gradients of the step before: empty the sum after each step",),
    ),
    # Only rank 0 gathers: it waits for the others, they wait for it in the next step.
    "only_rank_0_gathers": Submission(
        changed(
            task_3_code=MEAN
            + STATE
            + GATHER
            + """
def zero1_step(parameters, state, step):
    n, r = dist.get_world_size(), dist.get_rank()
    gradient = mean_of_my_shard(flatten([p.grad for p in parameters], n))
    whole = flatten(parameters, n)
    shard = whole.chunk(n)[r].clone()
    adam_step(shard, gradient, state["m"], state["v"], step)
    if r == 0:
        dist.all_gather(list(whole.chunk(n)), shard)
        copy_back(whole, parameters)
"""
        ),
        (6, 4, 2, 7, 0),
        ("reached the limit of 30 s",),
    ),
}

ASSIGNMENT = Assignment(
    name="04_sharded_optimizer",
    notebook="sharded_optimizer.ipynb",
    chapter="04_zero_fsdp.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "stage_1_bytes has no answer yet",
        "task-2-check": "NotImplementedError: flatten is not written yet",
        "task-3-check": "NotImplementedError: mean_of_my_shard is not written yet",
        "task-4-check": "NotImplementedError: zero2_accumulate is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

"""Assignment 06: write a pipeline schedule."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
turns = numbers.n_micro_batches + numbers.stages - 1
step_s = turns * (numbers.forward_s + numbers.backward_s)
idle_of_total = (numbers.stages - 1) / turns
idle_of_ideal = (turns - numbers.n_micro_batches) / numbers.n_micro_batches
held_bytes = numbers.kept_bytes * (numbers.stages - numbers.rank)
micro_batches = 1
while (numbers.stages - 1) / (micro_batches + numbers.stages - 1) > numbers.target:
    micro_batches += 1
"""

GPIPE = """
def gpipe(p, m):
    return [[kind + str(i) for kind in "FB" for i in range(m)] for rank in range(p)]
"""

ONE_F_ONE_B = """
def one_f_one_b(p, m):
    schedule = []
    for rank in range(p):
        most, order, done, freed = p - rank, [], 0, 0
        while freed < m:
            if done < m and done - freed < most:
                order.append(f"F{done}")
                done += 1
            else:
                order.append(f"B{freed}")
                freed += 1
        schedule.append(order)
    return schedule
"""

INTERLEAVED = """
def interleaved(p, m, v):
    def forward(k):
        group, place = divmod(k, p * v)
        return f"F{group * p + place % p}.{place // p}"

    def backward(k):
        group, place = divmod(k, p * v)
        return f"B{group * p + place % p}.{v - 1 - place // p}"

    schedule = []
    for rank in range(p):
        first = p - 1 - rank if v == 1 else (v - 1) * p + 2 * (p - 1 - rank)
        first = min(first, m * v)
        order = [forward(k) for k in range(first)]
        for k in range(first, m * v):
            order += [forward(k), backward(k - first)]
        order += [backward(k) for k in range(m * v - first, m * v)]
        schedule.append(order)
    return schedule
"""

RUN_ORDER = """
def run_order(order, stage, inputs, targets, shape):
    import torch
    import torch.distributed as dist
    from torch.nn.functional import mse_loss

    me, before, after = dist.get_rank(), dist.get_rank() - 1, dist.get_rank() + 1
    is_last = after == dist.get_world_size()
    share = 1 / sum(entry.startswith("F") for entry in order)
    arrived, left, waiting, held = {}, {}, [], [0]

    def receive(source):
        tensor = torch.zeros(*shape)
        dist.recv(tensor, source)
        return tensor

    def send(tensor, destination):
        waiting.append((tensor, dist.isend(tensor, destination)))

    for entry in order:
        number = int(entry[1:])
        if entry.startswith("F"):
            arrived[number] = inputs[number] if me == 0 else receive(before).requires_grad_(True)
            left[number] = stage(arrived[number])
            if is_last:
                left[number] = share * mse_loss(left[number], targets[number])
            else:
                send(left[number].detach().clone(), after)
            held.append(held[-1] + 1)
        else:
            left.pop(number).backward(None if is_last else receive(after))
            gradient = arrived.pop(number).grad
            if me > 0:
                send(gradient, before)
            held.append(held[-1] - 1)
    for _, work in waiting:
        work.wait()
    return max(held)
"""

EXPLAINED = (
    "Three forwards there, eight times the work, three backwards home. 1F1B keeps 4, 3, 2, 1. Messages and waking up "
    "are in the idle time and weigh less in long operations. Interleaving sends more."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": GPIPE,
    "task-3-code": ONE_F_ONE_B,
    "task-4-code": INTERLEAVED,
    "task-5-code": RUN_ORDER,
    "task-6-answer": EXPLAINED,
}
FULL = (5, 4, 6, 5, 5, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


def with_warm_up(forwards: str) -> str:
    """A 1F1B whose ranks run this many forwards before they take turns."""
    return f"""
def one_f_one_b(p, m):
    schedule = []
    for rank in range(p):
        ahead = {forwards}
        order = [f"F{{i}}" for i in range(ahead)]
        for i in range(m):
            if ahead + i < m:
                order.append(f"F{{ahead + i}}")
            order.append(f"B{{i}}")
        schedule.append(order)
    return schedule
"""


WRONG = {
    # Takes one definition of the bubble for the other, and leaves the backward out of the step.
    "confuses_the_bubbles": Submission(
        changed(
            task_1_answer="""
p, m = numbers.stages, numbers.n_micro_batches
step_s = (m + p - 1) * numbers.forward_s
idle_of_total = (p - 1) / m
idle_of_ideal = (p - 1) / (m + p - 1)
held_bytes = m * numbers.kept_bytes
micro_batches = -(-(p - 1) // numbers.target)
"""
        ),
        (0, 4, 6, 5, 5, 0),
        (
            "that leaves the backwards out",
            "that is idle over ideal time; the total time also holds the idle time",
            "that is idle over total time; the ideal time is the work alone",
            "that is GPipe, which keeps all micro-batches",
            "that brings idle over ideal time down to t",
        ),
    ),
    # Believes that 1F1B is only another name: all forwards first, all micro-batches kept.
    "gpipe_again": Submission(
        changed(task_3_code="def one_f_one_b(p, m):\n    return gpipe(p, m)\n"),
        (5, 4, 2, 5, 5, 0),
        ("one_f_one_b(4, 8): rank 0 keeps 8 micro-batches at one time, and 4 are enough",),
    ),
    # Each micro-batch forward and back before the next one: the least memory, and hardly a pipeline.
    "one_micro_batch_at_a_time": Submission(
        changed(
            task_2_code="""
def gpipe(p, m):
    return [[kind + str(i) for i in range(m) for kind in "FB"] for rank in range(p)]
""",
            task_3_code="""
def one_f_one_b(p, m):
    return [[kind + str(i) for i in range(m) for kind in "FB"] for rank in range(p)]
""",
        ),
        (5, 1, 3, 5, 5, 0),
        (
            "rank 0 runs B0 before F7; in GPipe every forward comes before the first backward",
            "the step takes 960 ms; 330 ms are possible. The longest gap: stage 0 waits 90 ms",
        ),
    ),
    # Counts the ranks in front instead of those behind: the front waits for gradients that the back can't make yet.
    "warms_up_at_the_wrong_end": Submission(
        changed(task_3_code=with_warm_up("min(rank, m)")),
        (5, 4, 0, 5, 5, 0),
        ("deadlock: rank 0 stands at B0 and waits for the B0 that rank 1 lists only after its F1",),
    ),
    # The same number of forwards first on every rank: the last rank's first backward comes too late for everyone.
    "warms_up_alike": Submission(
        changed(task_3_code=with_warm_up("min(p - 1, m)")),
        (5, 4, 2, 5, 5, 0),
        (
            "the step takes 690 ms; 330 ms are possible. The longest gap: stage 0 waits 90 ms",
            "rank 1 keeps 4 micro-batches at one time, and 3 are enough",
        ),
    ),
    # Doesn't count the forward in hand: one micro-batch more than necessary on every rank.
    "one_forward_too_many": Submission(
        changed(task_3_code=with_warm_up("min(p - rank, m)")),
        (5, 4, 2, 5, 5, 0),
        ("rank 0 keeps 5 micro-batches at one time, and 4 are enough",),
    ),
    # Right as long as there are at least as many micro-batches as ranks.
    "forgets_few_micro_batches": Submission(
        changed(task_3_code=with_warm_up("p - 1 - rank")),
        (5, 4, 5, 5, 5, 0),
        ("one_f_one_b(4, 2): rank 0: F2 is beyond the 2 micro-batches (0 to 1)",),
    ),
    # All micro-batches through one chunk before the next chunk begins: a short step, and as much memory as GPipe.
    "one_chunk_after_the_other": Submission(
        changed(
            task_4_code="""
def interleaved(p, m, v):
    forwards = [f"F{i}.{chunk}" for chunk in range(v) for i in range(m)]
    backwards = [f"B{i}.{chunk}" for chunk in reversed(range(v)) for i in range(m)]
    return [forwards + backwards for rank in range(p)]
"""
        ),
        (5, 4, 6, 2, 5, 0),
        ("rank 0 keeps 8 micro-batches at one time, and 5.5 are enough",),
    ),
    # Backwards through the chunks in the order of the forwards: the first one waits for the last for ever. (With one
    # chunk there is only one order.)
    "backwards_start_in_front": Submission(
        changed(task_4_code=INTERLEAVED.replace("{v - 1 - place // p}", "{place // p}")),
        (5, 4, 6, 1, 5, 0),
        ("deadlock: rank",),
    ),
    # One forward more for each rank ahead, as with one chunk: every message is waited for.
    "warms_up_by_one": Submission(
        changed(task_4_code=INTERLEAVED.replace("2 * (p - 1 - rank)", "(p - 1 - rank)")),
        (5, 4, 6, 3, 5, 0),
        ("interleaved(4, 8, 2): the step takes",),
    ),
    # Adds the losses of the micro-batches up instead of averaging them.
    "sum_of_losses": Submission(
        changed(task_5_code=RUN_ORDER.replace("share * mse_loss", "mse_loss")),
        (5, 4, 6, 5, 2, 0),
        ("its gradients are 4 times as large as the unsplit model's",),
    ),
    # Takes the newest micro-batch for each backward. Under GPipe all ranks do so alike, and nobody notices.
    "newest_first": Submission(
        changed(
            task_5_code=RUN_ORDER.replace("left.pop(number)", "left.popitem()[1]").replace(
                "arrived.pop(number)", "arrived.popitem()[1]"
            )
        ),
        (5, 4, 6, 5, 3, 0),
        ("1f1b, 4 micro-batches: rank 0: its gradients are not the unsplit model's",),
    ),
    # Runs all forwards and then all backwards, and doesn't look at the list.
    "ignores_the_list": Submission(
        changed(
            task_5_code=RUN_ORDER.replace(
                "    for entry in order:\n",
                "    for entry in sorted(order, key=lambda one: one[0] == 'B'):\n",
            )
        ),
        (5, 4, 6, 5, 3, 0),
        ("1f1b, 4 micro-batches: rank 0: ran F F F F B B B B, the list says F0 F1 F2 B0",),
    ),
    # A received activation doesn't ask for its gradient, so there is none to send back.
    "input_without_gradient": Submission(
        changed(task_5_code=RUN_ORDER.replace(".requires_grad_(True)", "")),
        (5, 4, 6, 5, 0, 0),
        ("of send: waiting.append((tensor, dist.isend(tensor, destination)))",),
    ),
    # Sends that wait until they are received: in 1F1B an activation on its way down meets a gradient on its way up, and
    # the ranks hang. In GPipe they never meet.
    "sends_that_wait": Submission(
        changed(
            task_5_code=RUN_ORDER.replace(
                "waiting.append((tensor, dist.isend(tensor, destination)))", "dist.send(tensor, destination)"
            )
        ),
        (5, 4, 6, 5, 1, 0),
        ("1f1b, 4 micro-batches: the lab reached the limit of",),
    ),
}

ASSIGNMENT = Assignment(
    name="06_pipeline_schedule",
    notebook="pipeline_schedule.ipynb",
    chapter="06_pipeline_parallel.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "step_s has no answer yet",
        "task-2-check": "NotImplementedError: gpipe is not written yet",
        "task-3-check": "NotImplementedError: one_f_one_b is not written yet",
        "task-4-check": "NotImplementedError: interleaved is not written yet",
        "task-5-check": "NotImplementedError: run_order is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

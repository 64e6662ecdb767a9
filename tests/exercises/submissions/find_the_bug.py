"""Assignment 11: find the bug."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

from shardlab.classroom.bug_checks import by_hand_numbers


def by_hand(student: str) -> str:
    """Task 1 as this student answers it: plain numbers."""
    mine = by_hand_numbers(student)
    names = ("efficiency", "sent_bytes", "low_bandwidth", "high_bandwidth")
    return "\n".join(f"{name} = {mine.key(name)!r}" for name in names)


BY_HAND = """
n = numbers.n_ranks
computes = numbers.base_step_s if numbers.scaling == "weak" else numbers.base_step_s / n
efficiency = computes / numbers.step_s
sent_bytes = 2 * numbers.n_bytes * (1 - 1 / n)
low_bandwidth = sent_bytes / numbers.step_s
high_bandwidth = sent_bytes / (numbers.step_s - computes)
"""

VERDICTS = """
def judge(one):
    lost = one.step_s - one.base_step_s
    sent, link = 2 * one.gradient_bytes * (1 - 1 / one.n_ranks), one.link_bits_per_s / 8
    if lost < one.step_s / 10:
        return "scales-well"
    if 2 * one.data_s >= lost:
        return "data-loading"
    if 2 * sent / link < lost:
        return "below-nominal"
    return "network-bound" if sent / link > one.base_step_s else "communication-exposed"


verdicts = {name: judge(one) for name, one in zip("ABCDE", reports.reports)}
"""

ACCURACY = """
def accuracy(correct, n_samples):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = len(range(rank, n_samples, world))
    right = correct[:mine].sum()
    dist.all_reduce(right)
    return right / n_samples
"""

AVERAGE = """

def average_gradients(gradients):
    bucket = torch.cat([one.flatten() for one in reversed(gradients)])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    means, end = [], bucket.numel()
    for one in gradients:
        means.append(bucket[end - one.numel() : end].view_as(one))
        end -= one.numel()
    return means
"""

STEP = """

def scaled_step(weight, gradient, scale, lr):
    bad = torch.tensor(0 if torch.isfinite(gradient).all() else 1)
    dist.all_reduce(bad)
    if bad:
        return weight, scale / 2
    return weight - lr * gradient / scale, scale
"""

ENTROPY = """
def parallel_cross_entropy(logits, targets):
    first = dist.get_rank() * logits.shape[1]
    top = logits.amax(1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    sums = torch.zeros(2, len(targets))
    sums[0] = (logits - top[:, None]).exp().sum(1)
    for token, target in enumerate(targets.tolist()):
        if first <= target < first + logits.shape[1]:
            sums[1, token] = logits[token, target - first] - top[token]
    dist.all_reduce(sums)
    return sums[0].log() - sums[1]
"""

NORM = """

def gradient_norm(sharded, replicated):
    world = dist.get_world_size()
    square = sum([one.square().sum() for one in sharded], torch.zeros(()))
    square = square + sum([one.square().sum() / world for one in replicated], torch.zeros(()))
    dist.all_reduce(square)
    return square.sqrt()
"""

CAUGHT = """
wrong_anyway = {"average_gradients", "parallel_cross_entropy", "gradient_norm"}
caught = {
    "one rank": {"average_gradients"},
    "ranks agree": {"scaled_step"},
    "even": wrong_anyway,
    "awkward": wrong_anyway | {"accuracy", "scaled_step"},
}
"""

EXPLAINED = "Samples that come twice count twice. The ratio is sqrt(1 + (N - 1) f). Compare with one process."

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-answer": VERDICTS,
    "task-3-code": ACCURACY + AVERAGE + STEP,
    "task-4-code": ENTROPY + NORM,
    "task-5-answer": CAUGHT,
    "task-6-answer": EXPLAINED,
}
FULL = (4, 5, 6, 6, 4, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Gives the programs their new names and mends nothing.
    "renamed_only": Submission(
        changed(
            task_3_code="""
def accuracy(correct, n_samples):
    return accuracy_as_found(correct, n_samples)


def average_gradients(gradients):
    return average_gradients_as_found(gradients)


def scaled_step(weight, gradient, scale, lr):
    return scaled_step_as_found(weight, gradient, scale, lr)
""",
            task_4_code="""
def parallel_cross_entropy(logits, targets):
    return parallel_cross_entropy_as_found(logits, targets)


def gradient_norm(sharded, replicated):
    return gradient_norm_as_found(sharded, replicated)
""",
        ),
        (4, 5, 0, 0, 4, 0),
        (
            "the accuracy is",
            "the gradient of layer 0: it starts with",
            "inf in the shard of rank",
            "2 sharded and 2 replicated gradients: the norm is",
        ),
    ),
    # Divides by the samples of the set, and still counts those that come twice.
    "counts_repeated_samples": Submission(
        changed(task_3_code=ACCURACY.replace("correct[:mine]", "correct") + AVERAGE + STEP),
        (4, 5, 4, 6, 4, 0),
        ("the accuracy is",),
    ),
    # Unpacks the bucket in the order in which it was packed, and hands it back in that order.
    "forgets_to_turn_the_list_round": Submission(
        changed(
            task_3_code=ACCURACY
            + """

def average_gradients(gradients):
    packed = gradients[::-1]
    bucket = torch.cat([one.flatten() for one in packed])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    parts = bucket.split([one.numel() for one in packed])
    return [part.view_as(one) for part, one in zip(parts, packed)]
"""
            + STEP
        ),
        (4, 5, 4, 6, 4, 0),
        ("the gradient of layer 0",),
    ),
    # Lets rank 0 decide whether anybody had an overflow.
    "rank_0_decides": Submission(
        changed(
            task_3_code=ACCURACY + AVERAGE + STEP.replace("dist.all_reduce(bad)", "dist.broadcast(bad, 0)")
        ),
        (4, 5, 4, 6, 4, 0),
        ("inf in the shard of rank 1",),
    ),
    # Calls the collective only on the rank that needs it: the others never come. The other programs keep their marks.
    "collective_on_one_rank_only": Submission(
        changed(
            task_3_code=ACCURACY
            + AVERAGE
            + """

def scaled_step(weight, gradient, scale, lr):
    if not torch.isfinite(gradient).all():
        bad = torch.tensor(1.0)
        dist.all_reduce(bad)
        return weight, scale / 2
    return weight - lr * gradient / scale, scale
"""
        ),
        (4, 5, 4, 6, 4, 0),
        ("waits in all_reduce",),
    ),
    # Works on two ranks, and on no other number.
    "hard_codes_2": Submission(
        changed(
            task_3_code=ACCURACY.replace("dist.get_world_size()", "2")
            + AVERAGE.replace("dist.get_world_size()", "2")
            + STEP
        ),
        (4, 5, 4, 6, 4, 0),
    ),
    # Leaves the maximum out altogether: right, until a logit is large.
    "no_maximum_at_all": Submission(
        changed(
            task_4_code="""
def parallel_cross_entropy(logits, targets):
    width = logits.shape[1]
    total = logits.exp().sum(1)
    dist.all_reduce(total)
    wanted = logits.gather(1, (targets % width)[:, None])[:, 0] * (targets // width == dist.get_rank())
    dist.all_reduce(wanted)
    return total.log() - wanted
"""
            + NORM
        ),
        (4, 5, 6, 5, 4, 0),
        ("the list of losses: it starts with inf",),
    ),
    # Gathers everything on every rank: right, and what tensor parallelism is there to avoid.
    "gathers_everything": Submission(
        changed(
            task_4_code="""
def gathered(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.contiguous())
    return parts


def parallel_cross_entropy(logits, targets):
    whole = torch.cat(gathered(logits), 1)
    return torch.nn.functional.cross_entropy(whole, targets, reduction="none")


def gradient_norm(sharded, replicated):
    parts = [part for one in sharded for part in gathered(one)]
    return torch.cat([one.flatten() for one in [*parts, *replicated]]).norm()
"""
        ),
        (4, 5, 6, 4, 4, 0),
        ("numbers to collectives",),
    ),
    # Takes the mean of the squares: now the sharded parts are too small.
    "averages_the_squares": Submission(
        changed(
            task_4_code=ENTROPY
            + """

def gradient_norm(sharded, replicated):
    square = torch.zeros(())
    for one in [*sharded, *replicated]:
        square += one.square().sum()
    dist.all_reduce(square)
    return (square / dist.get_world_size()).sqrt()
"""
        ),
        (4, 5, 6, 3, 4, 0),
        ("2 sharded and 2 replicated gradients: the norm is",),
    ),
    # Takes weak scaling for strong, and strong for weak.
    "other_scaling": Submission(
        changed(task_1_answer=BY_HAND.replace('== "weak"', '== "strong"')),
        (2, 5, 6, 6, 4, 0),
        ("that would be so in", "high_bandwidth ="),
    ),
    # Takes the link's bits for bytes: good links look bad.
    "bits_for_bytes": Submission(
        changed(task_2_answer=VERDICTS.replace("one.link_bits_per_s / 8", "one.link_bits_per_s")),
        (4, 3, 6, 6, 4, 0),
        ("is not below-nominal: with nothing hidden, the link delivered",),
    ),
    # Believes that ranks which agree are right, and that one rank shows nothing.
    "agreeing_is_right": Submission(
        changed(
            task_5_answer=CAUGHT.replace('{"average_gradients"},', "set(),").replace(
                '{"scaled_step"},', 'wrong_anyway | {"accuracy", "scaled_step"},'
            )
        ),
        (4, 5, 6, 6, 2, 0),
        (
            "'ranks agree' was run on accuracy_as_found, and it passes: why does its fault not show there?",
            "'one rank' was run on average_gradients_as_found, and it fails: what is different there?",
        ),
    ),
    # The notebook of the student 'neighbour' under another name: the numbers of task 1 are the neighbour's.
    "neighbour": Submission(changed(task_1_answer=by_hand("neighbour")), FULL),
    "copied": Submission(
        changed(task_1_answer=by_hand("neighbour")),
        (0, 5, 6, 6, 4, 0),
        ("handed in by 'copied', but the notebook says student = 'neighbour'",),
        student="neighbour",
    ),
}

ASSIGNMENT = Assignment(
    name="11_find_the_bug",
    notebook="find_the_bug.ipynb",
    chapter="11_production.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "efficiency has no answer yet",
        "task-2-check": "verdicts['A'] has no answer yet",
        "task-3-check": "accuracy is not written yet",
        "task-4-check": "parallel_cross_entropy is not written yet",
        "task-5-check": "caught['one rank'] has no answer yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

"""Assignment 08: who talks to whom."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

from shardlab.classroom.mesh_checks import QUANTITIES, by_hand_numbers


def by_hand(student: str) -> str:
    """Task 1 as this student answers it: plain numbers."""
    mine = by_hand_numbers(student)
    return "\n".join(f"{name} = {mine.key(name)!r}" for name in QUANTITIES)


BY_HAND = """
stride, strides = 1, {}
for axis, size in numbers.order:
    strides[axis], stride = stride, stride * size
data_place = numbers.rank // strides["data"] % dict(numbers.order)["data"]
next_stage = numbers.rank + strides["pipeline"]
leaving_ranks = strides["data"]
ports = numbers.n_ports * numbers.port_bits_per_s / 8
data_s = numbers.n_bytes / min(numbers.inside_bandwidth, ports / leaving_ranks)
"""

PLACE = """
def place(rank, order):
    found = {}
    for axis, size in order:
        rank, found[axis] = divmod(rank, size)
    return found
"""

RANK_AT = """
def rank_at(place, order):
    rank = 0
    for axis, size in reversed(order):
        rank = rank * size + place[axis]
    return rank
"""

GROUP = """
def group(rank, along, order):
    ranks, stride = {rank}, 1
    for axis, size in order:
        if axis in along:
            ranks = {r - (r // stride % size - at) * stride for r in ranks for at in range(size)}
        stride *= size
    return tuple(sorted(ranks))
"""

LEAVING = """
def leaving(order, along, node_gpus):
    n_ranks = 1
    for _, size in order:
        n_ranks *= size
    senders = []
    for ring in {group(rank, along, order) for rank in range(n_ranks)}:
        for one, other in zip(ring, ring[1:] + ring[:1]):
            if one // node_gpus != other // node_gpus:
                senders.append(one // node_gpus)
    return max([senders.count(node) for node in senders], default=0)
"""

RING_TIME = """
def ring_time_s(n_bytes, order, along, node_gpus, inside, network):
    out = leaving(order, along, node_gpus)
    return max(n_bytes / inside, n_bytes * out / network)
"""

CHOOSE = """
def choose(question):
    found = []
    for tensor in range(1, question.gpus + 1):
        for pipeline in range(1, question.gpus // tensor + 1):
            degrees = (question.gpus // tensor // pipeline, tensor, pipeline)
            try:
                made = question.predict(*degrees)
            except ValueError:
                continue
            if made.fits:
                found.append((made.step_time_s, degrees))
    return min(found)[1] if found else None
"""

GROUPS = """
def make_groups(groups_of):
    mine = {}
    for axis in groups_of:
        for ranks in groups_of[axis]:
            made = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine[axis] = made
    return mine
"""

AVERAGE = """
def average_gradients(gradients, groups):
    for gradient in gradients:
        gradient /= dist.get_world_size(groups["data"])
        dist.all_reduce(gradient, group=groups["data"])
"""

NORM = """
def gradient_norm(split, shared, groups):
    squares = torch.stack([part.pow(2).sum() for part in split]).sum()
    dist.all_reduce(squares, group=groups["tensor"])
    return torch.sqrt(squares + sum(whole.pow(2).sum() for whole in shared))
"""

EXPLAINED = (
    "Tensor sends more, in each micro-batch. The wrong group has the right shapes. Compare with one process."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": PLACE + RANK_AT + GROUP,
    "task-3-code": LEAVING + RING_TIME,
    "task-4-code": CHOOSE,
    "task-5-code": GROUPS + AVERAGE + NORM,
    "task-6-answer": EXPLAINED,
}
FULL = (4, 6, 4, 5, 6, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Reads the order as torch's device mesh does, the last axis fastest: places and ranks are another mesh's.
    "last_axis_fastest": Submission(
        changed(
            task_2_code=PLACE.replace("in order", "in reversed(order)")
            + RANK_AT.replace("reversed(order)", "order")
            + GROUP
        ),
        (4, 3, 4, 5, 6, 0),
        ("the first axis of the order is the fastest, not the last",),
    ),
    # Takes consecutive ranks for every axis' group: right for the fastest axis, and for no other.
    "groups_are_blocks": Submission(
        changed(
            task_2_code=PLACE
            + RANK_AT
            + """
def group(rank, along, order):
    size = 1
    for axis, n in order:
        if axis in along:
            size *= n
    first = rank // size * size
    return tuple(range(first, first + size))
"""
        ),
        (4, 3, 4, 5, 6, 0),
        ("rank 1 differs from rank 0 on another axis too",),
    ),
    # Looks at the first of the axes only: gradients of context ranks would be left out.
    "one_axis_only": Submission(
        changed(task_2_code=PLACE + RANK_AT + GROUP.replace("axis in along", "axis == along[0]")),
        (4, 5, 4, 5, 6, 0),
        ("along data and context",),
    ),
    # Forgets that the last rank of a ring sends to the first.
    "ring_left_open": Submission(
        changed(task_3_code=LEAVING.replace("ring[1:] + ring[:1]", "ring[1:]") + RING_TIME),
        (4, 6, 2, 5, 6, 0),
        ("a ring is closed, the last rank of a group sends to the first",),
    ),
    # Gives every ring all ports of the node.
    "ports_not_shared": Submission(
        changed(
            task_1_answer=BY_HAND.replace("ports / leaving_ranks", "ports"),
            task_3_code=LEAVING
            + RING_TIME.replace("n_bytes * out / network", "n_bytes / network if out else 0"),
        ),
        (3, 6, 2, 5, 6, 0),
        ("the ports are shared by all ranks that send out at the same time",),
    ),
    # Counts what leaves all nodes together.
    "all_nodes_together": Submission(
        changed(
            task_3_code=LEAVING.replace(
                "max([senders.count(node) for node in senders], default=0)", "len(senders)"
            )
            + RING_TIME
        ),
        (4, 6, 2, 5, 6, 0),
        ("that is all nodes together; the busiest one counts",),
    ),
    # Takes the fastest layout of all, whether it fits or not.
    "ignores_memory": Submission(
        changed(task_4_code=CHOOSE.replace("if made.fits", "if True")),
        (4, 6, 4, 0, 6, 0),
        ("and a GPU has",),
    ),
    # Takes the layout that needs least memory: it fits, and it is slow.
    "least_memory": Submission(
        changed(
            task_4_code=CHOOSE.replace("(made.step_time_s, degrees)", "(made.memory.total_bytes, degrees)")
        ),
        (4, 6, 4, 2, 6, 0),
        ("a step; another that fits takes",),
    ),
    # Makes only the groups that this rank is in, so the ranks' calls don't belong together.
    "only_own_groups": Submission(
        changed(
            task_5_code="""
def make_groups(groups_of):
    rank = dist.get_rank()
    return {
        axis: dist.new_group(next(ranks for ranks in every if rank in ranks))
        for axis, every in groups_of.items()
    }
"""
            + AVERAGE
            + NORM
        ),
        (4, 6, 4, 5, 4, 0),
        (
            "rank 0 makes [0, 1] while rank 2 makes [2, 3]: every rank must make every group, in the same order",
        ),
    ),
    # Makes every group, and keeps the last of each axis: most ranks aren't in it.
    "keeps_the_last_group": Submission(
        changed(
            task_5_code=GROUPS.replace("            if dist.get_rank() in ranks:\n    ", "") + AVERAGE + NORM
        ),
        (4, 6, 4, 5, 4, 0),
        ("it is one that this rank isn't in",),
    ),
    # Averages over the tensor group, whose ranks hold other slices, and clips each rank by its own part's norm.
    "wrong_group": Submission(
        changed(
            task_5_code=GROUPS
            + AVERAGE.replace('groups["data"]', 'groups["tensor"]')
            + NORM.replace('    dist.all_reduce(squares, group=groups["tensor"])\n', "")
        ),
        (4, 6, 4, 5, 2, 0),
        (
            "that is averaged over the tensor group, which holds other slices of the weights",
            "that is this rank's own part",
        ),
    ),
    # Averages over all ranks, as without a mesh, and counts shared weights once for each tensor rank.
    "everybody_together": Submission(
        changed(
            task_5_code=GROUPS
            + AVERAGE.replace('groups["data"]', "dist.group.WORLD")
            + """
def gradient_norm(split, shared, groups):
    squares = sum(part.pow(2).sum() for part in split + shared)
    dist.all_reduce(squares, group=groups["tensor"])
    return squares.sqrt()
"""
        ),
        (4, 6, 4, 5, 2, 0),
        (
            "that is averaged over all ranks, also over those that hold other slices of the weights",
            "that counts the shared gradient once for each tensor rank",
        ),
    ),
    # Reads Gb/s as GB/s, takes the next number for the next stage, and counts coordinates from 1.
    "off_by_one": Submission(
        changed(
            task_1_answer=BY_HAND.replace(" / 8", "")
            .replace('+ strides["pipeline"]', "+ 1")
            .replace('dict(numbers.order)["data"]', 'dict(numbers.order)["data"] + 1', 1)
        ),
        (1, 6, 4, 5, 6, 0),
        (
            "the ports are given in bits per second",
            "that is the neighbour on the fastest axis",
            "coordinates count from 0",
        ),
    ),
    # The notebook of the student 'mesh_neighbour' under another name: numbers and cluster are the neighbour's.
    "copied": Submission(
        changed(task_1_answer=by_hand("mesh_neighbour")),
        (0, 6, 4, 2, 6, 0),
        ("handed in by 'copied', but the notebook says student = 'mesh_neighbour'",),
        student="mesh_neighbour",
    ),
}

ASSIGNMENT = Assignment(
    name="08_mesh",
    notebook="mesh.ipynb",
    chapter="08_composing.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "data_place has no answer yet",
        "task-2-check": "NotImplementedError: place is not written yet",
        "task-3-check": "NotImplementedError: leaving is not written yet",
        "task-4-check": "NotImplementedError: choose is not written yet",
        "task-5-check": "NotImplementedError: make_groups is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

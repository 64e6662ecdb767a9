"""Assignment 07: write ring attention."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
tokens = numbers.sequence // numbers.ranks
block, diagonal = tokens * tokens, tokens * (tokens + 1) // 2
hop_bytes = 4 * tokens * numbers.kv_heads * numbers.head_dim
forward_bytes = hop_bytes * (numbers.ranks - 1)
rank_pairs = numbers.rank * block + diagonal
everything = sum(rank * block + diagonal for rank in range(numbers.ranks))
zigzag_pairs = everything / numbers.ranks
slowdown = ((numbers.ranks - 1) * block + diagonal) / zigzag_pairs
"""

PART = """
def part(q, k, v, visible):
    scores = torch.where(visible, q @ k.T / q.shape[1] ** 0.5, float("-inf"))
    top = scores.amax(1)
    weights = torch.where(visible, torch.exp(scores - top[:, None]), 0.0)
    return top, weights.sum(1), weights @ v
"""

MERGE = """
def merge(one, other):
    top = torch.where(one[0] > other[0], one[0], other[0])

    def fade(state):
        return torch.where(state[0] == float("-inf"), 0.0, torch.exp(state[0] - top))

    total = fade(one) * one[1] + fade(other) * other[1]
    out = fade(one)[:, None] * one[2] + fade(other)[:, None] * other[2]
    return top, total, out
"""

ZIGZAG = """
def zigzag(sequence, ranks):
    size = sequence // (2 * ranks)
    return [
        [*range(r * size, (r + 1) * size), *range(sequence - (r + 1) * size, sequence - r * size)]
        for r in range(ranks)
    ]
"""

WORK = """
def work(deal):
    n = len(deal)
    table = [[0] * n for _ in range(n)]
    for rank, queries in enumerate(deal):
        for step in range(n):
            for key in deal[(rank - step) % n]:
                table[step][rank] += len([query for query in queries if query >= key])
    return table
"""

RING = """
def ring_attention(q, k, v, deal, causal):
    import torch.distributed as dist

    me, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (me + 1) % ranks, (me - 1) % ranks
    state = None
    for step in range(ranks):
        owner = (me - step) % ranks
        see = [[not causal or key <= query for key in deal[owner]] for query in deal[me]]
        new = part(q, k, v, torch.tensor(see))
        state = merge(state, new) if state else new
        if step + 1 < ranks:
            sends = [dist.isend(x.contiguous(), right) for x in (k, v)]
            next_k, next_v = torch.zeros_like(k), torch.zeros_like(v)
            dist.recv(next_k, left)
            dist.recv(next_v, left)
            for send in sends:
                send.wait()
            k, v = next_k, next_v
    return state[2] / state[1].unsqueeze(1)
"""

EXPLAINED = (
    "Rank 3 has half a block and three full ones, 3.5 of 2. The ring waits for it. In a zigzag early and late pieces add "
    "up. Bytes and result stay."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": PART + MERGE,
    "task-3-code": ZIGZAG + WORK,
    "task-4-code": RING,
    "task-5-answer": EXPLAINED,
}
FULL = (5, 7, 5, 8, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Counts the heads of the queries, forgets the mask, and lets the parts come home.
    "forgets_groups_and_mask": Submission(
        changed(
            task_1_answer="""
c, n = numbers.ranks, numbers.sequence // numbers.ranks
hop_bytes = 2 * n * numbers.heads * numbers.head_dim * 2
forward_bytes = c * 2 * n * numbers.kv_heads * numbers.head_dim * 2
rank_pairs = c * n * n
zigzag_pairs = c * n * n
slowdown = 2
"""
        ),
        (0, 7, 5, 8, 0),
        (
            "the queries stay where they are: count the heads of keys and values",
            "a part makes c − 1 hops",
            "that is without a mask",
            "that is the limit for many ranks",
        ),
    ),
    # Leaves out the square root of d. Task 4 is marked with a working task 2.
    "forgets_the_scale": Submission(
        changed(task_2_code=PART.replace(" / q.shape[1] ** 0.5", "") + MERGE),
        (5, 4, 5, 8, 0),
        ("a score is q · k divided by the square root of d",),
    ),
    # Subtracts −inf from −inf where a query sees nothing of a block, in both functions.
    "nan_where_nothing_is_seen": Submission(
        changed(
            task_2_code=PART.replace(
                "torch.where(visible, torch.exp(scores - top[:, None]), 0.0)",
                "torch.exp(scores - top[:, None])",
            )
            + MERGE.replace(
                'torch.where(state[0] == float("-inf"), 0.0, torch.exp(state[0] - top))',
                "torch.exp(state[0] - top)",
            )
        ),
        (5, 5, 5, 8, 0),
        ("NaN for a query that sees no key of this block: −inf minus −inf is no number",),
    ),
    # Adds sums that were made with different tops.
    "adds_without_fading": Submission(
        changed(
            task_2_code=PART
            + """
def merge(one, other):
    return torch.maximum(one[0], other[0]), one[1] + other[1], one[2] + other[2]
"""
        ),
        (5, 3, 5, 8, 0),
        ("what was summed up under a smaller top must be multiplied by exp(its own top − the new top)",),
    ),
    # Undoes the tops with exp(top): right until a score is large.
    "overflows": Submission(
        changed(
            task_2_code=PART
            + """
def merge(one, other):
    top = torch.maximum(one[0], other[0])
    back = torch.where(top == float("-inf"), 0.0, torch.exp(-top))
    total = (one[1] * torch.exp(one[0]) + other[1] * torch.exp(other[0])) * back
    weights = [(torch.exp(state[0]) * back)[:, None] for state in (one, other)]
    return top, total, weights[0] * one[2] + weights[1] * other[2]
"""
        ),
        (5, 6, 5, 8, 0),
        ("NaN: does it work out exp(top), which overflows above 88",),
    ),
    # Gives every rank a piece of the front half and the same piece of the back half: late with late.
    "halves_instead_of_zigzag": Submission(
        changed(
            task_3_code="""
def zigzag(sequence, ranks):
    size = sequence // (2 * ranks)
    half = sequence // 2
    return [
        [*range(r * size, (r + 1) * size), *range(half + r * size, half + (r + 1) * size)]
        for r in range(ranks)
    ]
"""
            + WORK
        ),
        (5, 7, 3, 8, 0),
        ("rank 0 has [0, 1, 8, 9], not [0, 1, 14, 15]: piece r and the r-th from the end",),
    ),
    # Counts blocks without their mask.
    "counts_hidden_pairs": Submission(
        changed(
            task_3_code=ZIGZAG
            + """
def work(deal):
    n = len(deal)
    return [[len(deal[r]) * len(deal[(r - step) % n]) for r in range(n)] for step in range(n)]
"""
        ),
        (5, 7, 2, 8, 0),
        ("a query sees only keys at its own position or before",),
    ),
    # A triangle within every block, whatever the positions are.
    "masks_by_place_in_the_block": Submission(
        changed(
            task_4_code=RING.replace(
                "[[not causal or key <= query for key in deal[owner]] for query in deal[me]]",
                "[[not causal or j <= i for j in range(len(k))] for i in range(len(q))]",
            )
        ),
        (5, 7, 5, 3, 0),
        ("the result is masked by the place within a block: compare positions in the sequence",),
    ),
    # Keys and values go left, and the mask believes that they come from the left: right without a mask.
    "sends_to_the_left": Submission(
        changed(
            task_4_code=RING.replace(
                "right, left = (me + 1) % ranks, (me - 1)", "right, left = (me - 1) % ranks, (me + 1)"
            )
        ),
        (5, 7, 5, 1, 0),
        (
            "rank 0: sent 32 numbers to rank 3; in the ring it sends only to rank 1",
            "do the keys, the values and the positions of a step belong together?",
        ),
    ),
    # Collects all keys and values first: the right result, with all of them on every rank.
    "gathers_everything": Submission(
        changed(
            task_4_code="""
def ring_attention(q, k, v, deal, causal):
    import torch.distributed as dist

    me, ranks = dist.get_rank(), dist.get_world_size()
    parts = [torch.zeros(2, *k.shape) for _ in range(ranks)]
    dist.all_gather(parts, torch.stack((k, v)))
    all_k, all_v = torch.cat(parts, dim=1)
    keys = torch.tensor([place for places in deal for place in places])
    see = torch.tensor(deal[me])[:, None] >= keys[None] if causal else torch.ones(len(q), len(keys)) > 0
    top, total, out = part(q, all_k, all_v, see)
    return out / total[:, None]
"""
        ),
        (5, 7, 5, 5, 0),
        ("in the ring keys and values only go from neighbour to neighbour",),
    ),
    # Passes the last part on as well, though nobody needs it.
    "one_hop_too_many": Submission(
        changed(task_4_code=RING.replace("if step + 1 < ranks:", "if ranks > 1:")),
        (5, 7, 5, 5, 0),
        ("sent 256 numbers; N − 1 = 3 hops of keys and values take 192: after the last step nobody needs",),
    ),
    # Forgets that the values have to travel with their keys.
    "values_stay_at_home": Submission(
        changed(
            task_4_code=RING.replace("for x in (k, v)]", "for x in (k,)]")
            .replace("            dist.recv(next_v, left)\n", "")
            .replace("k, v = next_k, next_v", "k = next_k")
        ),
        (5, 7, 5, 0, 0),
        ("sent 96 numbers; N − 1 = 3 hops of keys and values take 192: both have to travel",),
    ),
    # Works on four ranks, and on no other number.
    "hard_codes_4": Submission(
        changed(
            task_4_code=RING.replace(
                "me, ranks = dist.get_rank(), dist.get_world_size()", "me, ranks = dist.get_rank(), 4"
            )
        ),
        (5, 7, 5, 7, 0),
        ("and there are only ranks 0 to 2",),
    ),
    # Everyone waits for a message before anyone sends one.
    "receives_first": Submission(
        changed(
            task_4_code=RING.replace(
                "            sends = [dist.isend(x.contiguous(), right) for x in (k, v)]\n", ""
            ).replace(
                "            dist.recv(next_v, left)\n",
                "            dist.recv(next_v, left)\n"
                "            sends = [dist.isend(x.contiguous(), right) for x in (k, v)]\n",
            )
        ),
        (5, 7, 5, 0, 0),
        ("no mask: the lab reached the limit of",),
    ),
}

ASSIGNMENT = Assignment(
    name="07_ring_attention",
    notebook="ring_attention.ipynb",
    chapter="07_context_expert_parallel.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "hop_bytes has no answer yet",
        "task-2-check": "NotImplementedError: part is not written yet",
        "task-3-check": "NotImplementedError: zigzag is not written yet",
        "task-4-check": "NotImplementedError: ring_attention is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

"""Assignment 03: write the ring all-reduce."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

from shardlab.classroom.ring_checks import by_hand_numbers


def by_hand(student: str) -> str:
    """Task 1 as this student answers it: plain numbers."""
    mine = by_hand_numbers(student)
    names = ("sent_bytes", "n_messages", "rank0_bytes", "time_s")
    return "\n".join(f"{name} = {mine.key(name)!r}" for name in names)


BY_HAND = """
ranks, size = numbers.n_ranks, 4 * numbers.n_params
sent_bytes = 2 * (ranks - 1) / ranks * size
n_messages = 2 * (ranks - 1)
rank0_bytes = (ranks - 1) * size
time_s = sent_bytes / (numbers.link_bits_per_s / 8) + n_messages * numbers.latency_s
"""

REDUCE_SCATTER = """
def ring_reduce_scatter(net, chunks):
    n, rank = net.n_ranks, net.rank
    for step in range(n - 1):
        net.send((rank + 1) % n, chunks[(rank - step) % n])
        got = net.recv((rank - 1) % n)
        chunks[(rank - step - 1) % n] = [a + b for a, b in zip(chunks[(rank - step - 1) % n], got)]
    return chunks
"""

ALL_GATHER = """
def ring_all_gather(net, chunks):
    n, rank = net.n_ranks, net.rank
    for step in range(n - 1):
        net.send((rank + 1) % n, chunks[(rank + 1 - step) % n])
        chunks[(rank - step) % n] = net.recv((rank - 1) % n)
    return chunks
"""

ALLREDUCE = """
def ring_allreduce(net, buffer):
    n = net.n_ranks
    starts = [c * (len(buffer) // n) + min(c, len(buffer) % n) for c in range(n + 1)]
    chunks = [buffer[starts[c]:starts[c + 1]] for c in range(n)]
    ring_reduce_scatter(net, chunks)
    ring_all_gather(net, chunks)
    return sum(chunks, [])
"""

COUNT = """
def count_sent_bytes(n_ranks, n_elements):
    return run_ranks(ring_allreduce, [list(range(n_elements)) for _ in range(n_ranks)]).sent_bytes
"""

PREDICT = """
def predict_sent_bytes(n_ranks, n_elements):
    sizes = [n_elements // n_ranks + (c < n_elements % n_ranks) for c in range(n_ranks)]
    return [4 * (2 * n_elements - sizes[(r + 1) % n_ranks] - sizes[(r + 2) % n_ranks]) for r in range(n_ranks)]
"""

EXPLAINED = "They rise towards 2P from below. The star's rank 0 carries (N-1)P. The ring pays in messages."

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": REDUCE_SCATTER,
    "task-3-code": ALL_GATHER,
    "task-4-code": ALLREDUCE,
    "task-5-code": COUNT + PREDICT,
    "task-6-answer": EXPLAINED,
}
FULL = (4, 6, 5, 6, 4, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Sends to the left and receives from the right. Each rank still sends as much as it should (1 mark in each task).
    # Tasks 4 and 5 are marked with working tasks 2 and 3.
    "wrong_neighbour": Submission(
        changed(
            task_2_code=REDUCE_SCATTER.replace("(rank + 1) % n, chunks", "(rank - 1) % n, chunks").replace(
                "recv((rank - 1) % n)", "recv((rank + 1) % n)"
            ),
            task_3_code=ALL_GATHER.replace("send((rank + 1) % n", "send((rank - 1) % n").replace(
                "recv((rank - 1) % n)", "recv((rank + 1) % n)"
            ),
        ),
        (4, 1, 1, 6, 4, 0),
        ("rank 0 sent chunk 0 to rank 3 in its step 0; in the ring it sends only to rank 1",),
    ),
    # The right neighbours, but a step too few: sums and economy are gone.
    "one_step_short": Submission(
        changed(
            task_2_code=REDUCE_SCATTER.replace("range(n - 1)", "range(n - 2)"),
            task_3_code=ALL_GATHER.replace("range(n - 1)", "range(n - 2)"),
        ),
        (4, 1, 1, 6, 4, 0),
        (
            "rank 0 sent 2 messages; the reduce-scatter on 4 ranks takes 3 from each",
            "its chunk 1 lacks the numbers of rank 1",
        ),
    ),
    # Adds in the all-gather too: its sums are wrong, its traffic is right.
    "sums_twice": Submission(
        changed(
            task_3_code=ALL_GATHER.replace(
                "chunks[(rank - step) % n] = net.recv((rank - 1) % n)",
                "got = net.recv((rank - 1) % n)\n"
                "        chunks[(rank - step) % n] = [a + b for a, b in zip(chunks[(rank - step) % n], got)]",
            )
        ),
        (4, 6, 2, 6, 4, 0),
        ("its chunk 0 counts the numbers of rank 0 more than once",),
    ),
    # Everything to rank 0 and back: right sums, wrong traffic, in all three tasks.
    "rank_0_and_back": Submission(
        changed(
            task_2_code="""
def ring_reduce_scatter(net, chunks):
    n = net.n_ranks
    if net.rank > 0:
        for chunk in chunks:
            net.send(0, chunk)
        chunks[(net.rank + 1) % n] = net.recv(0)
        return chunks
    for source in range(1, n):
        for c in range(n):
            chunks[c] = [a + b for a, b in zip(chunks[c], net.recv(source))]
    for rank in range(1, n):
        net.send(rank, chunks[(rank + 1) % n])
    return chunks
""",
            task_3_code="""
def ring_all_gather(net, chunks):
    n = net.n_ranks
    if net.rank > 0:
        net.send(0, chunks[(net.rank + 1) % n])
        return [net.recv(0) for _ in range(n)]
    for source in range(1, n):
        chunks[(source + 1) % n] = net.recv(source)
    for rank in range(1, n):
        for chunk in chunks:
            net.send(rank, chunk)
    return chunks
""",
            task_4_code="def ring_allreduce(net, buffer):\n    return star_allreduce(net, buffer)\n",
        ),
        (4, 4, 3, 4, 4, 0),
        ("rank 1 sent chunks 0, 1, 2, 3 to rank 0 in its step 0; in the ring it sends only to rank 2",),
    ),
    # Drops what is left over when N doesn't divide the length, and predicts as if it always did.
    "forgets_uneven_chunks": Submission(
        changed(
            task_4_code="""
def ring_allreduce(net, buffer):
    n, size = net.n_ranks, len(buffer) // net.n_ranks
    chunks = [buffer[c * size:(c + 1) * size] for c in range(n)]
    return sum(ring_all_gather(net, ring_reduce_scatter(net, chunks)), [])
""",
            task_5_code=COUNT
            + """
def predict_sent_bytes(n_ranks, n_elements):
    return [2 * (n_ranks - 1) / n_ranks * 4 * n_elements] * n_ranks
""",
        ),
        (4, 6, 5, 4, 2, 0),
        (
            "with 10 numbers on 4 ranks, the result of rank 0 has 8 numbers, not 10",
            "exact only if N divides the length",
        ),
    ),
    # Gives the last chunk all that is left over: right sums, unequal chunks, and other bytes than predicted from them.
    "one_long_chunk": Submission(
        changed(
            task_4_code="""
def ring_allreduce(net, buffer):
    n, size = net.n_ranks, len(buffer) // net.n_ranks
    ends = [c * size for c in range(n)] + [len(buffer)]
    chunks = [buffer[ends[c]:ends[c + 1]] for c in range(n)]
    return sum(ring_all_gather(net, ring_reduce_scatter(net, chunks)), [])
""",
        ),
        (4, 6, 5, 5, 4, 0),
        ("with 10 numbers on 4 ranks, a chunk has 2 or 3",),
    ),
    # Works on four ranks, and on no other number.
    "hard_codes_4": Submission(
        changed(
            task_2_code=REDUCE_SCATTER.replace("n, rank = net.n_ranks, net.rank", "n, rank = 4, net.rank"),
            task_3_code=ALL_GATHER.replace("n, rank = net.n_ranks, net.rank", "n, rank = 4, net.rank"),
            task_4_code=ALLREDUCE.replace("n = net.n_ranks", "n = 4"),
        ),
        (4, 4, 3, 5, 4, 0),
    ),
    # Takes the link's bits for bytes, and one phase for both.
    "bits_for_bytes": Submission(
        changed(
            task_1_answer=BY_HAND.replace(" / 8", "")
            .replace("n_messages = 2 * (ranks", "n_messages = (ranks")
            .replace("+ n_messages", "+ 2 * n_messages")
        ),
        (2, 6, 5, 6, 4, 0),
        ("a byte has 8 bits", "that is one phase; an all-reduce has two"),
    ),
    # The notebook of the student 'neighbour' under another name: the numbers of task 1 are the neighbour's.
    "neighbour": Submission(changed(task_1_answer=by_hand("neighbour")), FULL),
    "copied": Submission(
        changed(task_1_answer=by_hand("neighbour")),
        (0, 6, 5, 6, 4, 0),
        ("handed in by 'copied', but the notebook says student = 'neighbour'",),
        student="neighbour",
    ),
    # Doesn't compile; the other tasks keep their marks.
    "syntax_error": Submission(
        changed(task_2_code="def ring_reduce_scatter(net, chunks)\n    return chunks\n"),
        (4, 0, 5, 6, 4, 0),
        error="task-2-code: SyntaxError",
    ),
    # A loop without end inside a rank costs that task; one in a cell costs that cell.
    "endless_loop": Submission(
        changed(task_3_code="def ring_all_gather(net, chunks):\n    while True:\n        pass\n"),
        (4, 6, 0, 6, 4, 0),
        ("does a loop never end?",),
    ),
    "endless_cell": Submission(
        changed(task_1_answer="import time\nwhile True:\n    time.sleep(0.1)\n"),
        (0, 6, 5, 6, 4, 0),
        error="task-1-answer: stopped at the time limit",
        endless=True,
    ),
    # Everyone waits before anyone sends.
    "deadlock": Submission(
        changed(
            task_2_code="""
def ring_reduce_scatter(net, chunks):
    n, rank = net.n_ranks, net.rank
    for step in range(n - 1):
        got = net.recv((rank - 1) % n)
        net.send((rank + 1) % n, chunks[(rank - step) % n])
    return chunks
"""
        ),
        (4, 0, 5, 6, 4, 0),
        ("rank 0 waits for rank 3, which waits for rank 2",),
    ),
    # Switches the checks off and leaves out what it can't do: a check that isn't run earns nothing for it.
    "switched_off": Submission(
        {"task-1-answer": BY_HAND},
        (4, 0, 0, 0, 0, 0),
        tags={f"task-{number}-check": ["skip-execution"] for number in range(1, 6)},
    ),
}

ASSIGNMENT = Assignment(
    name="03_ring_allreduce",
    notebook="ring_allreduce.ipynb",
    chapter="03_data_parallel.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "sent_bytes has no answer yet",
        "task-2-check": "NotImplementedError: ring_reduce_scatter is not written yet",
        "task-3-check": "NotImplementedError: ring_all_gather is not written yet",
        "task-4-check": "NotImplementedError: ring_allreduce is not written yet",
        "task-5-check": "NotImplementedError: count_sent_bytes is not written yet",
    },
    marks_by_hand=5,
)

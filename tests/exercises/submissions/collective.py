"""Assignment 02: what does it cost to agree?"""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
import math
n, alpha, bandwidth = numbers.n_ranks, numbers.latency_s, numbers.link_bits_per_s / 8
half_bytes = bandwidth * alpha
doubling_s = math.log2(n) * alpha + math.log2(n) * numbers.n_bytes / bandwidth
ring_s = (2 * n - 2) * alpha + (2 * n - 2) / n * numbers.n_bytes / bandwidth
crossover_bytes = half_bytes * (2 * n - 2 - math.log2(n)) / (math.log2(n) - (2 * n - 2) / n)
busbw = numbers.measured_bytes / numbers.measured_s * (1 - 1 / numbers.measured_ranks)
if numbers.collective == "all-reduce":
    busbw = 2 * busbw
"""

BROADCAST = """
def tree_broadcast(net, buffer):
    # My parent is my number without its highest bit; my children have one bit more, above all of mine.
    bit = 1
    if net.rank > 0:
        while 2 * bit <= net.rank:
            bit = 2 * bit
        buffer = net.recv(net.rank - bit)
        bit = 2 * bit
    while net.rank + bit < net.n_ranks:
        net.send(net.rank + bit, buffer)
        bit = 2 * bit
    return buffer
"""

DOUBLING = """
def doubling_allreduce(net, buffer):
    n, rank = net.n_ranks, net.rank
    power = 2 ** (n.bit_length() - 1)
    if rank >= power:
        net.send(rank - power, buffer)
        return net.recv(rank - power)
    if rank + power < n:
        buffer = [a + b for a, b in zip(buffer, net.recv(rank + power))]
    step = 1
    while step < power:
        net.send(rank ^ step, buffer)
        got = net.recv(rank ^ step)
        buffer = [a + b for a, b in zip(buffer, got)]
        step *= 2
    if rank + power < n:
        net.send(rank + power, buffer)
    return buffer
"""

ALL_TO_ALL = """
def all_to_all(net, parts):
    n, rank = net.n_ranks, net.rank
    for step in range(1, n):
        net.send((rank + step) % n, parts[(rank + step) % n])
    return [parts[rank] if source == rank else net.recv(source) for source in range(n)]
"""

TWO_PHASE = """
def two_phase_allreduce(net, buffer):
    n = net.n_ranks
    starts = [c * (len(buffer) // n) + min(c, len(buffer) % n) for c in range(n + 1)]
    parts = [buffer[starts[c]:starts[c + 1]] for c in range(n)]
    versions = all_to_all(net, parts)
    mine = versions[0]
    for version in versions[1:]:
        mine = [a + b for a, b in zip(mine, version)]
    return sum(all_to_all(net, [mine for _ in range(n)]), [])
"""

COSTS = """
def doubling_rounds(n_ranks):
    rounds, power = 0, 1
    while 2 * power <= n_ranks:
        rounds, power = rounds + 1, 2 * power
    return rounds if power == n_ranks else rounds + 2


def doubling_time_s(n_bytes, n_ranks, latency_s, bandwidth):
    return doubling_rounds(n_ranks) * latency_s + doubling_rounds(n_ranks) * n_bytes / bandwidth


def two_phase_time_s(n_bytes, n_ranks, latency_s, bandwidth):
    return 2 * (n_ranks - 1) * latency_s + 2 * (n_ranks - 1) / n_ranks * n_bytes / bandwidth


def crossover_bytes(n_ranks, latency_s, bandwidth):
    more = 2 * (n_ranks - 1) - doubling_rounds(n_ranks)
    fewer = doubling_rounds(n_ranks) - 2 * (n_ranks - 1) / n_ranks
    return more * latency_s * bandwidth / fewer if fewer > 0 else None
"""

EXPLAINED = "Doubling wins for small buffers, two phases for large ones. 400 bytes measure the latency."

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": BROADCAST,
    "task-3-code": DOUBLING,
    "task-4-code": ALL_TO_ALL + TWO_PHASE,
    "task-5-code": COSTS,
    "task-6-answer": EXPLAINED,
}
FULL = (5, 5, 6, 6, 4, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Takes the link's bits for bytes; a measured bandwidth is not touched by it.
    "bits_for_bytes": Submission(
        changed(task_1_answer=BY_HAND.replace("numbers.link_bits_per_s / 8", "numbers.link_bits_per_s")),
        (1, 5, 6, 6, 4, 0),
        ("the link is given in bits per second; a byte has 8 bits",),
    ),
    # Multiplies with N - 1 for (N - 1)/N, as several published tools did.
    "busbw_with_n_minus_1": Submission(
        changed(
            task_1_answer=BY_HAND.replace("(1 - 1 / numbers", "(numbers").replace(
                "ranks)\nif", "ranks - 1)\nif"
            )
        ),
        (4, 5, 6, 6, 4, 0),
        ("with N − 1 for (N − 1)/N it is far above any wire",),
    ),
    # Rank 0 sends to everyone itself: right, and in as many rounds as there are others.
    "star_for_a_tree": Submission(
        changed(
            task_2_code="def tree_broadcast(net, buffer):\n    return star_broadcast(net, buffer)\n",
        ),
        (5, 3, 6, 6, 4, 0),
        (
            "a binomial tree on 8 ranks takes 3 rounds, and here 7 messages follow each other; "
            "rank 0 alone sends 7",
        ),
    ),
    # Hands the buffer down the line, from each rank to the next.
    "chain_for_a_tree": Submission(
        changed(
            task_2_code="""
def tree_broadcast(net, buffer):
    if net.rank > 0:
        buffer = net.recv(net.rank - 1)
    if net.rank + 1 < net.n_ranks:
        net.send(net.rank + 1, buffer)
    return buffer
"""
        ),
        (5, 3, 6, 6, 4, 0),
        ("here 7 messages follow each other; rank 0 alone sends 1",),
    ),
    # Doesn't ask whether the other rank exists: right for powers of two only, in the tree and in the exchange.
    "powers_of_two_only": Submission(
        changed(
            task_2_code="""
def tree_broadcast(net, buffer):
    distance = 1
    while distance < net.n_ranks:
        if net.rank < distance:
            net.send(net.rank + distance, buffer)
        elif net.rank < 2 * distance:
            buffer = net.recv(net.rank - distance)
        distance *= 2
    return buffer
""",
            task_3_code="""
def doubling_allreduce(net, buffer):
    distance = 1
    while distance < net.n_ranks:
        net.send(net.rank ^ distance, buffer)
        buffer = [a + b for a, b in zip(buffer, net.recv(net.rank ^ distance))]
        distance *= 2
    return buffer
""",
        ),
        (5, 3, 4, 6, 4, 0),
        ("destination must be a whole number from 0 to 2, not 3",),
    ),
    # Sums up to rank 0 and sends the sum back down: right sums, twice the rounds.
    "there_and_back": Submission(
        changed(
            task_3_code="""
def doubling_allreduce(net, buffer):
    n, rank, distance = net.n_ranks, net.rank, 1
    while distance < n:
        if rank & distance:
            net.send(rank - distance, buffer)
            break
        if rank + distance < n:
            buffer = [a + b for a, b in zip(buffer, net.recv(rank + distance))]
        distance *= 2
    return tree_broadcast(net, buffer)
""",
            task_2_code="""
def tree_broadcast(net, buffer):
    distance = 1
    while distance < net.n_ranks:
        if net.rank < distance:
            if net.rank + distance < net.n_ranks:
                net.send(net.rank + distance, buffer)
        elif net.rank < 2 * distance:
            buffer = net.recv(net.rank - distance)
        distance *= 2
    return buffer
""",
        ),
        (5, 5, 2, 6, 4, 0),
        ("recursive doubling on 8 ranks takes 3 rounds, and here 6 messages follow each other",),
    ),
    # Exchanges with the same partner in every round, so two ranks' numbers are counted again and again.
    "same_partner_every_round": Submission(
        changed(task_3_code=DOUBLING.replace("rank ^ step", "rank ^ 1")),
        (5, 5, 3, 6, 4, 0),
        ("counts the numbers of ranks 0, 1 more than once",),
    ),
    # Everyone waits before anyone sends.
    "waits_before_it_sends": Submission(
        changed(
            task_3_code=DOUBLING.replace(
                "        net.send(rank ^ step, buffer)\n        got = net.recv(rank ^ step)\n",
                "        got = net.recv(rank ^ step)\n        net.send(rank ^ step, buffer)\n",
            )
        ),
        (5, 5, 0, 6, 4, 0),
        ("rank 0 waits for rank 1, which waits for rank 0",),
    ),
    # All ranks send to rank 0 first, then to rank 1: right parts, too many rounds.
    "everyone_to_rank_0_first": Submission(
        changed(
            task_4_code=ALL_TO_ALL.replace(
                "    for step in range(1, n):\n        net.send((rank + step) % n, parts[(rank + step) % n])\n",
                "    for other in range(n):\n        if other != rank:\n            net.send(other, parts[other])\n",
            )
            + TWO_PHASE
        ),
        (5, 5, 6, 5, 4, 0),
        ("3 ranks send to rank 0 first, which takes one at a time",),
    ),
    # Puts what arrives in the order of the steps, and not in its sender's place; the all-reduce has a working one.
    "in_order_of_arrival": Submission(
        changed(
            task_4_code="""
def all_to_all(net, parts):
    n, rank = net.n_ranks, net.rank
    found = [parts[rank]]
    for step in range(1, n):
        net.send((rank + step) % n, parts[(rank + step) % n])
        found.append(net.recv((rank - step) % n))
    return found
"""
            + TWO_PHASE
        ),
        (5, 5, 6, 4, 4, 0),
        ("holds the part of rank 3 for rank 0, not that of rank 1 for rank 0",),
    ),
    # Sends everybody the whole buffer and adds all of them up itself: a right sum at N times the price of a phase.
    "whole_buffers_to_everyone": Submission(
        changed(
            task_4_code=ALL_TO_ALL
            + """
def two_phase_allreduce(net, buffer):
    buffers = all_to_all(net, [buffer] * net.n_ranks)
    return [sum(column) for column in zip(*buffers)]
"""
        ),
        (5, 5, 6, 5, 4, 0),
        ("rank 0 sent 3 messages; two all-to-alls on 4 ranks take 6",),
    ),
    # Drops what is left over when N doesn't divide the length.
    "forgets_uneven_parts": Submission(
        changed(
            task_4_code=ALL_TO_ALL
            + TWO_PHASE.replace(
                "c * (len(buffer) // n) + min(c, len(buffer) % n)",
                "c * (len(buffer) // n)",
            )
        ),
        (5, 5, 6, 5, 4, 0),
        ("with 10 numbers on 4 ranks, the result of rank 0 has 8 numbers, not 10",),
    ),
    # Pays the latency once, as if the rounds did not follow each other; the crossover is worked out apart.
    "one_latency_for_all_rounds": Submission(
        changed(
            task_5_code=COSTS.replace("doubling_rounds(n_ranks) * latency_s +", "latency_s +").replace(
                "2 * (n_ranks - 1) * latency_s +", "latency_s +"
            )
        ),
        (5, 5, 6, 6, 1, 0),
        ("the rounds follow each other: each of them pays the latency",),
    ),
    # Takes the logarithm as it is, and finds a crossover for two ranks.
    "log2_of_any_number": Submission(
        changed(
            task_5_code="import math\n"
            + COSTS.replace(
                "    return rounds if power == n_ranks else rounds + 2", "    return math.log2(n_ranks)"
            )
        ),
        (5, 5, 6, 6, 3, 0),
        ("log₂ N must be whole: what do the other ranks do?",),
    ),
}

ASSIGNMENT = Assignment(
    name="02_collectives",
    notebook="collectives.ipynb",
    chapter="02_collectives.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "half_bytes has no answer yet",
        "task-2-check": "NotImplementedError: tree_broadcast is not written yet",
        "task-3-check": "NotImplementedError: doubling_allreduce is not written yet",
        "task-4-check": "NotImplementedError: all_to_all is not written yet",
        "task-5-check": "NotImplementedError: doubling_time_s is not written yet",
    },
    marks_by_hand=4,
)

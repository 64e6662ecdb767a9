"""Assignment 09: gradients in buckets."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

from shardlab.classroom.bucket_checks import QUANTITIES, by_hand_numbers


def by_hand(student: str) -> str:
    """Task 1 as this student answers it: plain numbers."""
    mine = by_hand_numbers(student)
    return "\n".join(f"{name} = {mine.key(name)!r}" for name in QUANTITIES)


BY_HAND = """
N, b, k = numbers.n_ranks, numbers.bucket_bytes, numbers.n_buckets
bucket_s = 2 * (N - 1) * (numbers.latency_s + b / N / numbers.bandwidth)
free, fill_s = 0.0, numbers.backward_s / k
for bucket in range(1, k + 1):
    free = max(free, bucket * fill_s) + bucket_s
exposed_s = free - numbers.backward_s
sent_bytes = 2 * (N - 1) / N * b * k
token_loss = sum(t * l for t, l in zip(numbers.tokens, numbers.losses)) / sum(numbers.tokens)
"""

PACK = """
def make_buckets(sizes, cap_bytes):
    buckets, held = [], 0
    for index in range(len(sizes) - 1, -1, -1):
        if not buckets or held >= cap_bytes:
            buckets, held = buckets + [[]], 0
        buckets[-1].append(index)
        held += sizes[index]
    return buckets
"""

AVERAGE = """
def average_in_buckets(gradients, buckets):
    running = []
    for bucket in buckets:
        held = [gradients[index] for index in bucket]
        flat = torch.cat([gradient.flatten() for gradient in held])
        running.append((held, flat, dist.all_reduce(flat, async_op=True)))
    for held, flat, work in running:
        work.wait()
        pieces = (flat / dist.get_world_size()).split([gradient.numel() for gradient in held])
        for gradient, piece in zip(held, pieces):
            gradient.copy_(piece.view_as(gradient))
"""

REDUCER = """
class Reducer:
    def __init__(self, parameters, buckets):
        self.sync = True
        self.buckets = [[parameters[index] for index in bucket] for bucket in buckets]
        self.there = [set() for _ in buckets]
        self.running = []
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.hook_of(number))

    def hook_of(self, number):
        def hook(parameter):
            if not self.sync:
                return
            self.there[number].add(id(parameter))
            if len(self.there[number]) == len(self.buckets[number]):
                self.start(number)

        return hook

    def start(self, number):
        flat = torch.cat([parameter.grad.flatten() for parameter in self.buckets[number]])
        self.running.append((number, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for number, flat, work in self.running:
            work.wait()
            bucket = self.buckets[number]
            pieces = (flat / dist.get_world_size()).split([parameter.numel() for parameter in bucket])
            for parameter, piece in zip(bucket, pieces):
                parameter.grad.copy_(piece.view_as(parameter))
        self.running = []
        self.there = [set() for _ in self.buckets]
"""

ACCUMULATE = """
def accumulate(model, micro_batches, reducer):
    tokens = torch.tensor(float(sum(int((y >= 0).sum()) for _, y in micro_batches)))
    dist.all_reduce(tokens)
    for number, (x, y) in enumerate(micro_batches):
        reducer.sync = number + 1 == len(micro_batches)
        (token_losses(model, x, y).sum() / tokens * dist.get_world_size()).backward()
    reducer.finish()
"""

EXPLAINED = (
    "The bytes stay, the calls and the share that hides change. Cores are shared. Equal lengths hide it."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": PACK,
    "task-3-code": AVERAGE,
    "task-4-code": REDUCER,
    "task-5-code": ACCUMULATE,
    "task-6-answer": EXPLAINED,
}
FULL = (4, 5, 5, 6, 5, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Packs from the first layer on: the first bucket is complete only when the backward pass ends.
    "first_layer_first": Submission(
        changed(
            task_2_code=PACK.replace("range(len(sizes) - 1, -1, -1)", "range(len(sizes))"),
        ),
        (4, 3, 5, 6, 5, 0),
        ("the backward pass has the last gradients first",),
    ),
    # Closes a bucket before it would get too large, and loses the last one.
    "closes_too_early": Submission(
        changed(
            task_2_code="""
def make_buckets(sizes, cap_bytes):
    buckets, bucket, held = [], [], 0
    for index in reversed(range(len(sizes))):
        if bucket and held + sizes[index] > cap_bytes:
            buckets.append(bucket)
            bucket, held = [], 0
        bucket.append(index)
        held += sizes[index]
    return buckets
"""
        ),
        (4, 1, 5, 6, 5, 0),
        ("is in no bucket", "it is closed before it holds 200"),
    ),
    # Sends each gradient by itself and waits at once: right numbers, a latency for each, nothing in parallel.
    "one_by_one": Submission(
        changed(
            task_3_code="""
def average_in_buckets(gradients, buckets):
    for bucket in buckets:
        for index in bucket:
            flat = gradients[index].flatten().clone()
            dist.all_reduce(flat)
            gradients[index].copy_((flat / dist.get_world_size()).view_as(gradients[index]))
"""
        ),
        (4, 5, 2, 6, 5, 0),
        ("all_reduce was called 4 times", "start it with async_op=True"),
    ),
    # Adds up and doesn't divide: a gradient three times too long, which Adam would hide.
    "sum_for_mean": Submission(
        changed(
            task_3_code=AVERAGE.replace("(flat / dist.get_world_size())", "flat"),
            task_4_code=REDUCER.replace("(flat / dist.get_world_size())", "flat"),
        ),
        (4, 5, 2, 3, 5, 0),
        ("that is the sum: divide by the number of ranks", "that is the sum over the ranks"),
    ),
    # Averages the flat copy and forgets the gradients themselves.
    "not_copied_back": Submission(
        changed(task_3_code=AVERAGE.replace("gradient.copy_(piece.view_as(gradient))", "gradient = piece")),
        (4, 5, 2, 6, 5, 0),
        ("copy the result back into the gradients",),
    ),
    # Waits for each bucket before the next is started.
    "waits_in_between": Submission(
        changed(
            task_3_code=AVERAGE.replace(
                "        running.append((held, flat, dist.all_reduce(flat, async_op=True)))",
                "        work = dist.all_reduce(flat, async_op=True)\n"
                "        work.wait()\n"
                "        running.append((held, flat, work))",
            ),
            task_4_code=REDUCER.replace(
                "        self.running.append((number, flat, dist.all_reduce(flat, async_op=True)))",
                "        work = dist.all_reduce(flat, async_op=True)\n"
                "        work.wait()\n"
                "        self.running.append((number, flat, work))",
            ),
        ),
        (4, 5, 4, 3, 5, 0),
        ("start them all, then wait",),
    ),
    # Starts everything in finish(): right, and nothing hides under the backward pass.
    "starts_at_the_end": Submission(
        changed(
            task_4_code=REDUCER.replace("                self.start(number)", "                pass").replace(
                "    def finish(self):\n",
                "    def finish(self):\n"
                "        for number in range(len(self.buckets)):\n"
                "            self.start(number)\n",
            )
        ),
        (4, 5, 5, 3, 5, 0),
        ("bucket 0 was started when 8 of 8 gradients were there; its last one is number 2",),
    ),
    # Doesn't reset what it has counted: in the second step each bucket starts with its first gradient.
    "works_once": Submission(
        changed(task_4_code=REDUCER.replace("        self.there = [set() for _ in self.buckets]\n", "")),
        (4, 5, 5, 5, 5, 0),
        ("'NoneType' object has no attribute 'flatten'",),
    ),
    # Looks at sync in finish() only: every micro-batch is sent.
    "never_silent": Submission(
        changed(
            task_4_code=REDUCER.replace("            if not self.sync:\n                return\n", ""),
            task_5_code=ACCUMULATE.replace(
                "reducer.sync = number + 1 == len(micro_batches)", "reducer.sync = True"
            ),
        ),
        (4, 5, 5, 5, 4, 0),
        ("with sync = False nothing must be sent", "only the last micro-batch synchronises"),
    ),
    # Takes the mean of each text, and the mean of the means.
    "mean_of_means": Submission(
        changed(
            task_1_answer=BY_HAND.replace(
                "sum(t * l for t, l in zip(numbers.tokens, numbers.losses)) / sum(numbers.tokens)",
                "sum(numbers.losses) / 3",
            ),
            task_5_code=ACCUMULATE.replace(
                ".sum() / tokens * dist.get_world_size()", ".mean() / len(micro_batches)"
            ),
        ),
        (3, 5, 5, 6, 2, 0),
        (
            "that is the mean of the means: a token of a short text counts more in it",
            "that is the mean of the means: a token of a short text counts more than one of a long text",
        ),
    ),
    # Divides by the tokens of all ranks, and forgets that the reducer divides by the ranks as well.
    "forgets_the_ranks": Submission(
        changed(task_5_code=ACCUMULATE.replace(" * dist.get_world_size()", "")),
        (4, 5, 5, 6, 1, 0),
        ("it is too short by the number of ranks: the reducer divides by it, too",),
    ),
    # Counts padding as tokens.
    "counts_padding": Submission(
        changed(task_5_code=ACCUMULATE.replace("int((y >= 0).sum())", "len(y)")),
        (4, 5, 5, 6, 4, 0),
    ),
    # Adds all all-reduces to the backward pass, and multiplies by the micro-batches.
    "nothing_hides": Submission(
        changed(
            task_1_answer=BY_HAND.replace("free - numbers.backward_s", "k * bucket_s").replace(
                "sent_bytes = 2", "sent_bytes = numbers.micro_batches * 2"
            )
        ),
        (2, 5, 5, 6, 5, 0),
        (
            "that is all communication; most of it runs under the backward pass",
            "that is sent if each micro-batch is synchronised; one is enough",
        ),
    ),
    # The notebook of the student 'bucket_neighbour' under another name: the numbers of task 1 are the neighbour's.
    "copied": Submission(
        changed(task_1_answer=by_hand("bucket_neighbour")),
        (0, 5, 5, 6, 5, 0),
        ("handed in by 'copied', but the notebook says student = 'bucket_neighbour'",),
        student="bucket_neighbour",
    ),
}

ASSIGNMENT = Assignment(
    name="09_gradient_buckets",
    notebook="gradient_buckets.ipynb",
    chapter="09_engineering.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "bucket_s has no answer yet",
        "task-2-check": "NotImplementedError: make_buckets is not written yet",
        "task-3-check": "NotImplementedError: average_in_buckets is not written yet",
        "task-4-check": "NotImplementedError: Reducer is not written yet",
        "task-5-check": "NotImplementedError: accumulate is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

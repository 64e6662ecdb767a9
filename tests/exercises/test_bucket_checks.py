"""Assignment 09: everyone's own numbers, the packing, and the run that is explained."""

from __future__ import annotations

import pytest

from shardlab.classroom import bucket_checks
from shardlab.labs.machine import torch_installed

CLASS = [f"student {number}" for number in range(300)]


@pytest.fixture(scope="module")
def drawn():
    return [bucket_checks.by_hand_numbers(student) for student in CLASS]


def test_for_some_the_link_keeps_up_and_for_some_it_does_not(drawn):
    keeps_up = [numbers.key("exposed_s") < 1.01 * numbers.key("bucket_s") for numbers in drawn]
    assert 60 < sum(keeps_up) < 240


def test_the_answers_are_those_of_the_formulas(drawn):
    for numbers in drawn:
        n, size, k = numbers.n_ranks, numbers.bucket_bytes, numbers.n_buckets
        bucket_s = 2 * (n - 1) * (numbers.latency_s + size / n / numbers.bandwidth)
        fill_s = numbers.backward_s / k
        exposed_s = bucket_s if bucket_s <= fill_s else fill_s + k * bucket_s - numbers.backward_s
        weighted = sum(size * loss for size, loss in zip(numbers.tokens, numbers.losses, strict=True))
        assert numbers.key("bucket_s") == pytest.approx(bucket_s)
        assert numbers.key("exposed_s") == pytest.approx(exposed_s)
        assert numbers.key("sent_bytes") == pytest.approx(2 * (n - 1) / n * size * k)
        assert numbers.key("token_loss") == pytest.approx(weighted / sum(numbers.tokens))


@pytest.mark.parametrize(
    ("buckets", "part", "words"),
    [
        ([[2, 1], [0]], None, ""),
        ([(2, 1), (0,)], None, ""),
        ([[2, 1]], "complete", "gradient 0 is in no bucket"),
        ([[2, 1], [1, 0]], "complete", "gradient 1 is packed 2 times"),
        ([[2, 1], [], [0]], "complete", "bucket 1 is empty"),
        ([[3, 2, 1], [0]], "complete", "there is no gradient 3"),
        ([[1, 2], [0]], "reverse", "gradient 1 comes before gradient 2"),
        ([[2], [1], [0]], "full", "bucket 0 holds 4 bytes: it is closed before it holds 8"),
        ([[2, 1, 0]], "full", "bucket 0 holds 8 bytes before its last gradient: it was full already"),
        ([], "complete", "gradient 0 is in no bucket"),
        (None, "complete", "must return lists of indices"),
        ([2, 1, 0], "complete", "must return lists of indices"),
    ],
)
def test_what_is_wrong_with_a_packing_is_said(buckets, part, words):
    packing = bucket_checks.try_packing(lambda sizes, cap: buckets, [4, 4, 4], 8)
    if part is None:
        assert packing.fault is None
    else:
        assert words in getattr(packing, part)


@pytest.mark.torch
class TestOnRanks:
    @pytest.fixture(autouse=True)
    def _torch(self, monkeypatch):
        if not torch_installed():
            pytest.skip("torch is not installed: `make torch` installs it")
        # A student waits less for ranks that hang; these don't, and the machine may be busy.
        monkeypatch.setattr(bucket_checks, "TIME_LIMIT_S", 250.0)

    def test_the_packing_is_ddps_own(self, notebook):
        import torch
        import torch.distributed as dist
        from submissions.bucket import PACK

        make_buckets = notebook(PACK)["make_buckets"]
        for shapes, cap in (([10, 1, 25, 25, 5, 75, 20], 200), ([8] * 5, 64), ([100, 3, 3], 40), ([7], 1000)):
            tensors = [torch.zeros(size) for size in shapes]
            sizes = [4 * size for size in shapes]
            # DDP hands the gradients over in reverse, and numbers them from there.
            ddp, _ = dist._compute_bucket_assignment_by_size(tensors[::-1], [cap])
            last = len(shapes) - 1
            assert make_buckets(sizes, cap) == [[last - index for index in bucket] for bucket in ddp]

    def test_the_run_that_is_explained_shows_what_the_answer_says(self, notebook):
        from submissions.bucket import PACK, REDUCER

        names = notebook(f"import torch\nimport torch.distributed as dist\n{PACK}\n{REDUCER}")
        said = bucket_checks.measured(names["make_buckets"], names["Reducer"])
        rows = [line.split("  ") for line in said.splitlines()[2:]]
        cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
        assert [row[3] for row in cells] == ["12", "3", "2", "1", "12", "3"]
        assert [row[4] for row in cells] == [*["3.548 MB"] * 4, "14.19 MB", "3.548 MB"]
        assert [row[5] for row in cells][:4] == ["83 %", "67 %", "67 %", "0 %"]

    def test_a_method_that_is_missing_is_named_with_its_class(self, notebook):
        from shardlab.classroom import NotWritten

        names = notebook(
            "class Reducer:\n    def __init__(self, parameters, buckets):\n        self.sync = True\n"
            "    def finish(self):\n        raise NotImplementedError\n"
        )
        with pytest.raises(NotWritten, match=r"Reducer\.finish is not written yet"):
            bucket_checks.try_reducer(names["Reducer"], ["one"])

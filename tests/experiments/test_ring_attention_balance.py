"""The experiment's numbers are the context model's, and behave as chapter 07 says."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import ring_attention_balance as ring
from shardlab.models.context import ring_time, ring_traffic, ring_work


def run(**given: Any) -> dict[str, Any]:
    return engine.run("ring-attention-balance", given)


def readout(answer: dict[str, Any], label: str) -> str:
    return next(item["value"] for item in answer["readouts"] if item["label"] == label).replace("\u00a0", " ")


@pytest.mark.parametrize("split", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_bars_end_where_the_models_critical_path_ends(split: str, ranks: int) -> None:
    answer = run(split=split, ranks=ranks, step=ranks)
    work = ring_work(ring.whole_sequence(32768, ranks), ranks, split)
    computing, waiting = (part["values"] for part in answer["panels"][1]["stacks"])
    for rank in range(ranks):
        assert computing[rank] == pytest.approx(work.per_rank[rank] / work.balanced_pairs)
        assert computing[rank] + waiting[rank] == pytest.approx(work.slowdown)


@pytest.mark.parametrize("preset", ["in-order", "long", "slow-link", "no-mask"])
def test_the_time_line_ends_at_the_models_time(preset: str) -> None:
    answer = run(preset=preset)
    values = answer["values"]
    expected = ring_time(
        ring.whole_sequence(values["sequence"], values["ranks"]),
        1,
        ring.HEADS,
        ring.HEAD_DIM,
        values["ranks"],
        ring.attention_rate(),
        values["bandwidth"],
        kv_heads=ring.KV_HEADS,
        split=values["split"],
        causal=values["causal"],
    )
    assert max(span["end"] for span in answer["panels"][2]["spans"]) == pytest.approx(expected.step_time_s)
    assert ("hides behind" in answer["words"][-1]) is expected.hidden


def test_blocks_and_bytes_on_four_ranks() -> None:
    answer = run(preset="in-order")
    assert answer["panels"][0]["texts"] == [
        ["50", "0", "0", "0"],
        ["100", "50", "0", "0"],
        ["100", "100", "50", "0"],
        ["100", "100", "100", "50"],
    ]
    assert readout(answer, "the ring over fair shares") == "1.75×"
    # 3/4 of 2 s g d e: 100.7 MB
    assert ring_traffic(32768, 1, 8, 128, 4).forward_bytes == 0.75 * 2 * 32768 * 8 * 128 * 2
    assert readout(answer, "sent by each rank") == "100.7 MB"
    zigzag = run(preset="zigzag")
    assert all(text == "50" for row in zigzag["panels"][0]["texts"] for text in row)
    assert readout(zigzag, "the ring over fair shares") == "1.00×"
    assert readout(zigzag, "sent by each rank") == "100.7 MB"


def test_a_step_marks_the_block_whose_keys_are_there() -> None:
    marks = run(ranks=4, step=2)["panels"][0]["marks"]
    assert marks == [[0, 3, "to"], [1, 0, "to"], [2, 1, "to"], [3, 2, "to"]]
    answer = run(ranks=4, step=2)
    assert "1 rank of 4" in answer["words"][1]
    assert answer["panels"][1]["stacks"][1]["values"][0] > 0
    assert run(ranks=3, step=16)["values"]["step"] == 3


def test_only_the_causal_mask_makes_work_uneven() -> None:
    answer = run(causal=False, step=4)
    assert answer["panels"][1]["stacks"][1]["values"] == [0.0] * 4
    assert "Without a mask" in answer["words"][0]


def test_where_only_the_first_hop_is_too_slow_the_words_say_so() -> None:
    given = {"preset": "in-order", "sequence": 16384}
    assert "beside it: " in run(**given, bandwidth=16e9)["words"][-1]
    assert "beside it for 1 of 3 hops: " in run(**given, bandwidth=40e9)["words"][-1]


def test_many_blocks_get_a_sign_each_in_place_of_a_number() -> None:
    blocks = run(ranks=16, split="contiguous")["panels"][0]
    assert {text for row in blocks["texts"] for text in row} == {"0", "½", "1"}
    assert "%" not in blocks["title"]
    assert "%" in run(ranks=8)["panels"][0]["title"]

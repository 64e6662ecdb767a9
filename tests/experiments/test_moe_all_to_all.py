"""The experiment's numbers are the expert model's, and its expected routing is what drawn routings tend to."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.experiments.gallery import moe_all_to_all as moe
from shardlab.models.expert import communication_compute_ratio, expert_load, layer_traffic, routed_counts


def run(**given: Any) -> dict[str, Any]:
    return engine.run("moe-all-to-all", given)


def readout(answer: dict[str, Any], label: str) -> str:
    return next(item["value"] for item in answer["readouts"] if item["label"] == label).replace("\u00a0", " ")


def lane_end(answer: dict[str, Any], lane: int) -> float:
    return max(span["end"] for span in answer["panels"][2]["spans"] if span["lane"] == lane)


@pytest.mark.parametrize(
    ("experts", "top_k", "skew"), [(8, 1, 1.0), (8, 2, 1.0), (16, 2, 1.5), (64, 8, 1.0), (8, 6, 1.5)]
)
def test_expected_shares_are_what_drawn_routings_tend_to(experts: int, top_k: int, skew: float) -> None:
    tokens = 20_000
    drawn = routed_counts(tokens, experts, top_k, skew)
    shares = moe.expected_shares(experts, top_k, skew)
    assert sum(shares) == pytest.approx(top_k)
    for count, share in zip(drawn, shares, strict=True):
        assert count / tokens == pytest.approx(share, abs=0.012)


def test_all_experts_are_chosen_when_k_is_all_of_them() -> None:
    assert moe.expected_shares(4, 4, 1.5) == [1.0] * 4
    assert run(ranks=2, top_k=8)["values"]["top_k"] == 2


def test_even_routing_is_the_models_bytes_and_ratio() -> None:
    answer = run(preset="mixtral")
    traffic = layer_traffic(moe.TOKENS, moe.HIDDEN, 8, 2, 8)
    assert traffic.dispatch_bytes + traffic.combine_bytes == pytest.approx(117.44e6, rel=1e-4)
    assert readout(answer, "sent by a rank") == "117.4 MB"
    # One all-to-all after the other, over the experts' products: the model's ratio, dispatch and combine.
    spans = answer["panels"][2]["spans"]
    dispatch, combine, experts = (spans[index]["end"] - spans[index]["start"] for index in range(3))
    ratio = communication_compute_ratio(14336, 8, moe.expert_rate(), 400e9)
    assert (dispatch + combine) / experts == pytest.approx(ratio)
    assert lane_end(answer, 0) == lane_end(answer, 2)


def test_popular_experts_make_the_layer_wait_and_a_limit_drops() -> None:
    plain, limited = run(preset="skewed"), run(preset="limited")
    shares = moe.expected_shares(8, 2, 1.0)
    assert readout(plain, "busiest rank") == f"{max(shares) / 0.25:.2f}×"
    assert lane_end(plain, 2) / lane_end(plain, 0) == pytest.approx(max(shares) / 0.25, rel=1e-3)
    # A limit makes the time a matter of the factor alone.
    assert lane_end(limited, 2) / lane_end(limited, 0) == pytest.approx(1.25, rel=1e-3)
    counts = [int(share * 8 * moe.TOKENS + 0.5) for share in shares]
    load = expert_load(counts, 10240)
    assert readout(limited, "dropped") == f"{100 * load.dropped_fraction:.1f} %"
    assert readout(plain, "dropped") == "0.0 %"
    # With a limit no rank is sent more than its slots hold.
    assert "busiest rank is sent 2.52" in plain["words"][0]
    assert "busiest rank is chosen for 2.52" in limited["words"][0]


def test_dealing_popular_experts_out_evens_the_ranks_not_the_experts() -> None:
    together = run(ranks=4, experts_per_rank=4, skew=1.0)
    apart = run(ranks=4, experts_per_rank=4, skew=1.0, spread=True)
    assert float(readout(apart, "busiest rank")[:-1]) < float(readout(together, "busiest rank")[:-1])
    assert readout(apart, "busiest expert") == readout(together, "busiest expert")


def test_narrow_experts_are_bound_by_the_network() -> None:
    assert "network decides" in run(preset="fine-grained")["words"][2]
    assert "compute decides" in run(preset="mixtral")["words"][2]

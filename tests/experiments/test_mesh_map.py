"""The mesh's groups are the lab's and PyTorch's, its traffic the layout model's, and the order of axes decides what leaves a node."""

from __future__ import annotations

from typing import Any

import pytest

from shardlab.experiments import engine
from shardlab.labs.mesh import group_of, place_of
from shardlab.models.mesh import Mesh, mesh


def run(**given: Any) -> dict[str, Any]:
    return engine.run("mesh-map", given)


def three_axes() -> Mesh:
    return mesh((("tensor", 4), ("pipeline", 2), ("data", 3)), node_gpus=8)


def test_places_and_groups_are_the_labs() -> None:
    laid, sizes = three_axes(), (3, 2, 4)
    for rank in range(24):
        assert laid.place(rank) == tuple(reversed(place_of(sizes, rank)))
        for axis, name in enumerate(("data", "pipeline", "tensor")):
            assert laid.group(rank, (name,)) == group_of(sizes, rank, axis)


def test_every_rank_is_in_one_group_of_each_kind() -> None:
    laid = three_axes()
    for along in (("tensor",), ("pipeline",), ("data",), ("tensor", "data")):
        assert sorted(rank for group in laid.groups(along) for rank in group) == list(range(24))


def test_what_leaves_a_node() -> None:
    laid = mesh((("tensor", 8), ("data", 2), ("pipeline", 2)), node_gpus=8)
    assert not laid.crosses(0, ("tensor",))
    assert laid.leaving(("tensor",)) == 0
    assert laid.crosses(0, ("data",))
    assert laid.leaving(("data",)) == 8
    assert laid.ring_bandwidth(("tensor",), 450e9, 400e9) == 450e9
    assert laid.ring_bandwidth(("data",), 450e9, 400e9) == 50e9
    # One ring over two whole nodes leaves each once and has all its ports.
    wide = mesh((("tensor", 16),), node_gpus=8)
    assert wide.leaving(("tensor",)) == 1
    assert wide.ring_bandwidth(("tensor",), 450e9, 400e9) == 400e9


@pytest.mark.parametrize(
    ("order", "node_gpus", "word"),
    [((("tensor", 2), ("tensor", 2)), 8, "twice"), ((("tensor", 0),), 8, "tensor"), ((), 0, "node_gpus")],
)
def test_bad_meshes_are_refused(order: Any, node_gpus: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        mesh(order, node_gpus)


def test_bad_ranks_and_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="rank must be"):
        three_axes().place(24)
    with pytest.raises(ValueError, match="along must be"):
        three_axes().groups(("expert",))


def test_turning_the_order_round_costs_nine_times_the_tensor_time() -> None:
    """450 GB/s inside a node against a 50 GB/s share of its ports."""
    sent = [run(preset=name)["panels"][1]["stacks"] for name in ("megatron", "reversed")]
    inside, across = sent[0][0]["values"][0], sent[1][1]["values"][0]
    # 8 b s h e (t-1)/t per layer and micro-batch, 24 layers, 128 micro-batches.
    assert inside == pytest.approx(8 * 2048 * 12_288 * 2 * 7 / 8 * 24 * 128 / 450e9)
    assert across == pytest.approx(9 * inside)
    assert sent[0][1]["values"][0] == sent[1][0]["values"][0] == 0


def test_marked_cells_are_the_groups() -> None:
    texts = run(preset="megatron")["panels"][0]["texts"]
    marked = [cell for row in texts for cell in row if cell and not cell.isdigit()]
    assert marked == ["5D", "8T", "9T", "10T", "11T", "12T", "14T", "15T", "29P", "45P", "61P"]


def test_context_ranks_share_the_gradients() -> None:
    words = run(tensor=2, context=2, pipeline=1, data=2, rank=0)["words"][2]
    assert "Context: ranks 0, 2" in words
    assert "Data: ranks 0, 2, 4, 6" in words


def test_degrees_stay_within_what_is_drawn() -> None:
    answer = run(tensor=16, context=4, pipeline=16, data=64, rank=63)
    assert answer["readouts"][0]["value"] == "64"
    assert answer["bounds"]["data"] == {"most": 1}
    assert run(tensor=1, context=1, pipeline=1, data=1, rank=0)["words"] == [
        "One rank has no groups and sends nothing."
    ]


def test_many_small_nodes_stand_two_in_a_row() -> None:
    paired = run(node_gpus="4", tensor=8, pipeline=4, data=2)["panels"][0]
    assert paired["rows"] == [str(node) for node in range(0, 16, 2)]
    assert paired["columns"] == ["0", "1", "2", "3"] * 2
    assert paired["texts"][7][4] == "60"  # GPU 0 of node 15
    few = run(node_gpus="4", tensor=8, pipeline=2, data=2)["panels"][0]
    assert few["rows"] == [str(node) for node in range(8)]
    assert few["columns"] == ["0", "1", "2", "3"]

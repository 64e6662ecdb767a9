"""Model states, buffers and the bill, held against the ZeRO paper and against their own conservation laws."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import memory
from shardlab.units import GB, GIB

# ---------------------------------------------------------------- ZeRO, arXiv 1910.02054


def test_zero_figure_1() -> None:
    """7.5B parameters, K = 12, 64 ranks: 120, 31.4, 16.6, 1.9 GB (decimal GB)."""
    totals = [memory.model_states(7.5e9, 64, stage).total_bytes / GB for stage in range(4)]
    assert totals == pytest.approx([120, 31.40625, 16.640625, 1.875])
    assert [f"{total:.1f}" for total in totals] == ["120.0", "31.4", "16.6", "1.9"]


# Rows: data-parallel ranks; per model size (7.5B, 128B, 1T) the cells of stages 1, 2, 3 as printed in Table 1.
TABLE_1 = {
    1: (("120", "120", "120"), ("2048", "2048", "2048"), ("16000", "16000", "16000")),
    4: (("52.5", "41.3", "30"), ("896", "704", "512"), ("7000", "5500", "4000")),
    16: (("35.6", "21.6", "7.5"), ("608", "368", "128"), ("4750", "2875", "1000")),
    64: (("31.4", "16.6", "1.88"), ("536", "284", "32"), ("4187", "2218", "250")),
    256: (("30.4", "15.4", "0.47"), ("518", "263", "8"), ("4046", "2054", "62.5")),
    1024: (("30.1", "15.1", "0.12"), ("513", "257", "2"), ("4011", "2013", "15.6")),
}
TABLE_1_CELLS = [
    (ranks, params, stage + 1, columns[model][stage])
    for ranks, columns in TABLE_1.items()
    for model, params in enumerate((7.5e9, 128e9, 1e12))
    for stage in range(3)
]


def test_zero_table_1_has_54_cells() -> None:
    assert len(TABLE_1_CELLS) == 54


@pytest.mark.parametrize(("ranks", "params", "stage", "printed"), TABLE_1_CELLS)
def test_zero_table_1(ranks: int, params: float, stage: int, printed: str) -> None:
    """The 7.5B columns are rounded; the 128B and 1T columns are cut off (4187.5 is printed 4187)."""
    value = memory.model_states(params, ranks, stage).total_bytes / GB
    decimals = len(printed.partition(".")[2])
    unit = 10.0**-decimals
    if params == 7.5e9:
        assert abs(value - float(printed)) <= unit / 2 * (1 + 1e-9)
    else:
        assert math.floor(value / unit + 1e-9) == round(float(printed) / unit)


@pytest.mark.parametrize(
    ("model_parallel", "printed"), [(1, (2e9, 7.6e9, 14.4e9, 128e9)), (16, (32e9, 121.6e9, 230.4e9, 2e12))]
)
def test_zero_table_2_largest_models(model_parallel: int, printed: tuple[float, ...]) -> None:
    """Theoretical columns of Table 2, 32 GB devices, 64-way data parallel.

    The second row is the first times 16 after rounding (16 x 7.6 = 121.6; the formula says 122.3) and prints
    2.048T as 2T: hence 2.5 %.
    """
    for stage, expected in enumerate(printed):
        params = memory.largest_model_params(32e9, 64, stage, model_parallel=model_parallel)
        assert params == pytest.approx(expected, rel=0.025)
    assert memory.largest_model_params(32e9, 64, 1) == pytest.approx(32e9 / (4 + 12 / 64))


@pytest.mark.parametrize(
    ("stage", "ratios"),
    [
        (1, (1.60, 2.29, 2.91, 3.37, 3.82, 3.95, 3.99)),
        (2, (1.78, 2.91, 4.27, 5.57, 7.21, 7.79, 7.95)),
        (3, (2, 4, 8, 16, 64, 256, 1024)),
    ],
)
def test_saving_at_finite_ranks(stage: int, ratios: tuple[float, ...]) -> None:
    """The 4x, 8x and Nx of the paper are limits: at 8 ranks stage 1 saves 2.91x, stage 2 4.27x."""
    for ranks, expected in zip((2, 4, 8, 16, 64, 256, 1024), ratios, strict=True):
        ratio = (
            memory.model_states(1e9, ranks, 0).total_bytes
            / memory.model_states(1e9, ranks, stage).total_bytes
        )
        assert ratio == pytest.approx(expected, abs=0.005)


def test_items_of_the_default_recipe() -> None:
    states = memory.model_states(1e9, 4, 2)
    assert states.items == (
        ("parameters", 2e9),
        ("gradients", 0.5e9),
        ("master weights", 1e9),
        ("master gradients", 0.0),
        ("optimizer", 2e9),
    )
    assert states.total_bytes == 5.5e9
    assert states.bytes_per_parameter == 5.5
    assert (states.recipe, states.zero_stage, states.data_parallel) == ("mixed-adam-16", 2, 4)


# ---------------------------------------------------------------- recipes


@pytest.mark.parametrize("recipe", memory.RECIPES, ids=memory.RECIPE_NAMES)
def test_recipe_names_tell_the_total(recipe: memory.Recipe) -> None:
    assert int(recipe.name.rpartition("-")[2]) == math.floor(recipe.bytes_per_parameter + 0.01)
    assert recipe.used_by
    assert recipe.source
    assert memory.model_states(3.0, 1, 0, recipe.name).total_bytes == pytest.approx(
        3 * recipe.bytes_per_parameter
    )


def test_megatron_recipe_is_18_or_6_plus_12_over_d() -> None:
    """Megatron-LM keeps fp32 gradients and no 16-bit ones; its distributed optimizer shards the 12 others."""
    assert memory.model_states(1.0, 8, 0, "megatron-18").total_bytes == 18
    for ranks in (1, 2, 8, 64):
        states = memory.model_states(1.0, ranks, 1, "megatron-18")
        assert states.total_bytes == pytest.approx(6 + 12 / ranks)
    # So the stage-1 saving tends to 3x, not to the 4x of 16-bit gradients.
    assert 18 / memory.model_states(1.0, 10**6, 1, "megatron-18").total_bytes == pytest.approx(3, abs=1e-4)


def test_deepspeed_recipe_gives_the_two_zero2_formulas() -> None:
    """2Ψ + 18Ψ/N is stage 2; the older 4Ψ + 16Ψ/N is what stage 1 takes."""
    for ranks in (1, 4, 8):
        assert memory.model_states(1.0, ranks, 2, "deepspeed-20").total_bytes == pytest.approx(2 + 18 / ranks)
        assert memory.model_states(1.0, ranks, 1, "deepspeed-20").total_bytes == pytest.approx(4 + 16 / ranks)


def test_eight_bit_adam_and_adafactor() -> None:
    """One byte per moment plus an fp32 scale per 2048 elements; row and column sums of a matrix."""
    eight = memory.recipe_named("mixed-adam8bit-10")
    assert eight.optimizer == pytest.approx(2 * (1 + 4 / 2048))
    assert memory.adafactor_optimizer_bytes(4096, 4096) == 32768
    assert memory.recipe_named("fp32-adafactor-8").optimizer == pytest.approx(32768 / 4096**2)
    assert memory.adafactor_optimizer_bytes(10, 20, momentum=True) == 4 * (30 + 200)


def test_custom_recipe() -> None:
    recipe = memory.custom_recipe(1, 2, 4, master_weights=4, name="fp8")
    states = memory.model_states(1e9, 2, 1, recipe)
    assert states.recipe == "fp8"
    assert states.total_bytes == pytest.approx(1e9 * (1 + 2 + 8 / 2))
    with pytest.raises(ValueError, match="the sum of a recipe"):
        memory.custom_recipe(0, 0, 0)


# ---------------------------------------------------------------- FSDP, hybrid sharding, offload


def test_fsdp_strategies() -> None:
    """16 nodes of 8: full sharding over 128, hybrid over 8."""
    sizes = {name: memory.fsdp_states(1e9, 128, name, 8).total_bytes for name in memory.FSDP_STRATEGIES}
    assert sizes["NO_SHARD"] == 16e9
    assert sizes["FULL_SHARD"] == pytest.approx(16e9 / 128)
    assert sizes["HYBRID_SHARD"] == pytest.approx(16e9 / 8)
    assert sizes["SHARD_GRAD_OP"] == pytest.approx(4e9 + 12e9 / 128)
    assert sizes["_HYBRID_SHARD_ZERO2"] == pytest.approx(4e9 + 12e9 / 8)


def test_zero_offload_keeps_two_bytes_on_the_device() -> None:
    """ZeRO-Offload (arXiv 2101.06840): 2Ψ on the device, 14Ψ/N per rank on the host."""
    states = memory.model_states(1e9, 4, 2, offload_optimizer=True)
    assert states.total_bytes == 2e9
    assert states.host_bytes == pytest.approx(14e9 / 4)
    assert dict(states.host)["optimizer"] == pytest.approx(8e9 / 4)


def test_offload_of_everything_leaves_nothing_but_buffers() -> None:
    states = memory.model_states(1e9, 4, 3, "deepspeed-20", offload_optimizer=True, offload_parameters=True)
    assert states.total_bytes == 0
    assert states.host_bytes == pytest.approx(20e9 / 4)


# ---------------------------------------------------------------- buffers


def test_deepspeed_buckets() -> None:
    """5e8 elements of 2 bytes: 1 GB each, 9 GB for both with overlap_comm (Transformers' DeepSpeed page)."""
    assert memory.deepspeed_bucket_bytes() == 1e9
    assert 2 * memory.deepspeed_bucket_bytes(overlap_comm=True) == 9e9
    assert 2 * memory.deepspeed_bucket_bytes(2e8, overlap_comm=True) == pytest.approx(3.6e9)


def test_ddp_buckets_are_a_second_copy_of_the_gradients() -> None:
    assert memory.ddp_bucket_bytes(1e9) == 4e9
    assert memory.ddp_bucket_bytes(1e9, gradient_as_bucket_view=True) == 0


def test_unsharded_layer() -> None:
    assert memory.unsharded_bytes(32e6) == 4 * 32e6
    assert memory.unsharded_bytes(32e6, prefetched_units=1) == 6 * 32e6


# ---------------------------------------------------------------- the bill


def _bill(capacity: float | None = None) -> memory.MemoryBudget:
    states = memory.model_states(7e9, 8, 1)
    activations = memory.stage_activations(32, 4096, 1, 4096, 32, 32000, recompute="full", dropout=False)
    return memory.budget(
        states, activations, bucket_bytes=1e9, unsharded_layer_bytes=2e8, capacity_bytes=capacity
    )


def test_bill_adds_up_and_keeps_its_lines_apart() -> None:
    bill = _bill()
    parts = math.fsum(item.n_bytes for item in bill.items)
    assert bill.total_bytes == pytest.approx(parts)
    assert math.fsum(bill.category_bytes(name) for name in memory.CATEGORIES) == pytest.approx(parts)
    assert bill.category_bytes("parameters") == 14e9
    assert bill.category_bytes("optimizer") == pytest.approx(12 * 7e9 / 8)
    assert bill.category_bytes("other") == pytest.approx(1e9 + 2e8 + memory.CUDA_CONTEXT_BYTES)
    assert all(item.n_bytes > 0 for item in bill.items)
    assert bill.fits
    assert bill.headroom_bytes == math.inf


def test_bill_says_by_how_much_it_does_not_fit() -> None:
    bill = _bill(40e9)
    assert not bill.fits
    assert bill.headroom_bytes == pytest.approx(40e9 - bill.total_bytes)
    last = bill.text().splitlines()[-1]
    assert "does not fit" in last
    assert f"{(bill.total_bytes - 40e9) / GB:.3f} GB" in last
    assert f"{bill.total_bytes / GIB:.3f} GiB" in bill.text("GiB")


@pytest.mark.parametrize("unit", ["GB", "GiB"])
def test_every_number_of_the_text_is_labelled(unit: str) -> None:
    for line in _bill(80e9).text(unit).splitlines():
        assert line.endswith(" " + unit)


# ---------------------------------------------------------------- reading measurements


def test_reading_tells_sharded_from_replicated() -> None:
    unsharded = memory.sharding_reading(6e9, [(2, 13e9), (4, 13e9)])
    assert unsharded.verdict == "unsharded 16-bit weights"
    assert memory.sharding_reading(6e9, [(2, 48e9), (8, 12.3e9)]).verdict == "sharded"
    assert memory.sharding_reading(1e9, [(8, 16.1e9), (2, 16e9)]).verdict == "replicated states"
    assert memory.sharding_reading(1e9, [(2, 12e9), (8, 7e9)]).verdict == "unclear"


def test_reading_of_model_states_matches_their_stage() -> None:
    for stage, verdict in ((0, "replicated states"), (3, "sharded")):
        readings = [(n, memory.model_states(1e9, n, stage).total_bytes) for n in (2, 4, 8)]
        assert memory.sharding_reading(1e9, readings).verdict == verdict


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.model_states(0, 8, 1), "params must be a finite number above 0 parameters, not 0"),
        (lambda: memory.model_states(-1, 8, 1), "params"),
        (lambda: memory.model_states(1e9, 0, 1), "data_parallel must be a whole number of at least 1, not 0"),
        (lambda: memory.model_states(1e9, 2.5, 1), "data_parallel"),
        (lambda: memory.model_states(1e9, 8, 4), "zero_stage must be a whole number from 0 to 3, not 4"),
        (lambda: memory.model_states(1e9, 8, 1, "adam"), "recipe must be one of 'mixed-adam-16'"),
        (lambda: memory.model_states(1e9, 8, 3, shard_ranks=3), "shard_ranks must divide data_parallel = 8"),
        (
            lambda: memory.model_states(1e9, 8, 3, shard_ranks=16),
            "shard_ranks must be a whole number from 1 to 8",
        ),
        (
            lambda: memory.model_states(1e9, 8, 0, offload_optimizer=True),
            "offload_optimizer must go with zero_stage",
        ),
        (
            lambda: memory.model_states(1e9, 8, 2, offload_parameters=True),
            "offload_parameters must go with zero_stage 3",
        ),
        (lambda: memory.fsdp_states(1e9, 8, "ZERO"), "strategy must be one of 'NO_SHARD'"),
        (
            lambda: memory.fsdp_states(1e9, 12, "HYBRID_SHARD", 8),
            "shard_ranks must divide data_parallel = 12",
        ),
        (lambda: memory.largest_model_params(-1), "memory_bytes"),
        (lambda: memory.custom_recipe(-1, 2, 4), "parameters must be a finite number of at least 0 bytes"),
        (lambda: memory.sharding_reading(1e9, [(2, 1e9)]), "at least two pairs"),
        (lambda: memory.sharding_reading(1e9, [(2, 1e9), (2, 2e9)]), "different numbers of ranks"),
        (lambda: memory.unsharded_bytes(1e6, prefetched_units=-1), "prefetched_units"),
        (lambda: _bill(-1.0), "capacity_bytes"),
        (lambda: _bill().text("MB"), "unit must be one of 'GB', 'GiB'"),
        (lambda: _bill().category_bytes("cache"), "category must be one of"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        call()  # type: ignore[operator]


# ---------------------------------------------------------------- properties

params_st = st.floats(1e6, 2e12)
ranks_st = st.integers(1, 4096)
recipe_st = st.sampled_from(memory.RECIPE_NAMES)


@settings(deadline=None, max_examples=60)
@given(params=params_st, ranks=ranks_st, recipe=recipe_st)
def test_memory_falls_with_the_stage(params: float, ranks: int, recipe: str) -> None:
    totals = [memory.model_states(params, ranks, stage, recipe).total_bytes for stage in range(4)]
    for less, more in zip(totals[1:], totals, strict=False):
        assert less <= more * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(params=params_st, ranks=ranks_st, recipe=recipe_st, stage=st.integers(1, 3))
def test_memory_falls_with_the_ranks(params: float, ranks: int, recipe: str, stage: int) -> None:
    fewer = memory.model_states(params, ranks, stage, recipe).total_bytes
    more = memory.model_states(params, ranks + 1, stage, recipe).total_bytes
    assert more <= fewer * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(params=params_st, groups=st.integers(1, 16), group=st.integers(1, 64), recipe=recipe_st)
def test_shards_of_a_group_add_up_to_one_copy(params: float, groups: int, group: int, recipe: str) -> None:
    """Conservation: sharded bytes of all ranks of a group are the whole; nothing is lost, nothing doubled."""
    whole = memory.model_states(params, 1, 0, recipe)
    sharded = memory.model_states(params, groups * group, 3, recipe, shard_ranks=group)
    for (_, one), (_, share) in zip(whole.items, sharded.items, strict=True):
        assert share * group == pytest.approx(one)


@settings(deadline=None, max_examples=60)
@given(params=params_st, ranks=ranks_st, stage=st.integers(1, 3), recipe=recipe_st)
def test_offload_moves_bytes_and_loses_none(params: float, ranks: int, stage: int, recipe: str) -> None:
    """At stages 2 and 3 device + host is what the device held; at stage 1 the host needs its gradient shard only."""
    plain = memory.model_states(params, ranks, stage, recipe)
    moved = memory.model_states(
        params, ranks, stage, recipe, offload_optimizer=True, offload_parameters=stage == 3
    )
    if stage >= 2:
        assert moved.total_bytes + moved.host_bytes == pytest.approx(plain.total_bytes)
    else:
        assert moved.total_bytes + moved.host_bytes <= plain.total_bytes * (1 + 1e-12)


@settings(deadline=None, max_examples=60)
@given(params=params_st, ranks=ranks_st, stage=st.integers(0, 3), recipe=recipe_st)
def test_core_equals_the_itemised_states(params: float, ranks: int, stage: int, recipe: str) -> None:
    per = memory.recipe_named(recipe)
    core = memory.states_core(params, ranks, stage, per.parameters, per.gradients, per.stage1_bytes)
    assert core == pytest.approx(memory.model_states(params, ranks, stage, recipe).total_bytes)


@settings(deadline=None, max_examples=40)
@given(size=st.floats(1e9, 1e12), ranks=ranks_st, stage=st.integers(0, 3), recipe=recipe_st)
def test_the_largest_model_fills_the_memory(size: float, ranks: int, stage: int, recipe: str) -> None:
    params = memory.largest_model_params(size, ranks, stage, recipe)
    assert memory.model_states(params, ranks, stage, recipe).total_bytes == pytest.approx(size)

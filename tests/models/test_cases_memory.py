"""Problems that people reported in public, recomputed by the models: memory, sharding, accumulation, data, checkpoints.

Each test names its case by id and types its own inputs. Figures in the comments say what was reported.
"""

from __future__ import annotations

import math

import pytest

from shardlab.models import batch, checkpoint, communication, memory, stragglers, tensor
from shardlab.units import GB, GIB, MB, MIB

# ---------------------------------------------------------------- zero-memory


def test_e01_estimator_for_6_8b() -> None:
    """E01: 0.49, 3.66 and 29.01 GiB per GPU; 171.13 and 152.11 GiB on the host; a 16-bit copy is 12,980 MiB."""
    params, largest = 6.805e9, 131e6
    both = memory.deepspeed_zero3_estimate(params, largest, 4)
    optimizer = memory.deepspeed_zero3_estimate(params, largest, 4, offload_parameters=False)
    nothing = memory.deepspeed_zero3_estimate(
        params, largest, 4, offload_optimizer=False, offload_parameters=False
    )
    device = [answer.device_bytes / GIB for answer in (both, optimizer, nothing)]
    assert device == pytest.approx([0.49, 3.66, 29.01], rel=0.005)
    assert [both.host_bytes / GIB, optimizer.host_bytes / GIB] == pytest.approx([171.13, 152.11], rel=0.005)
    copy = memory.model_states(params, 1, 0, "frozen-2").total_bytes
    assert copy / MIB == pytest.approx(12980, rel=0.005)
    # 14,678 MiB right after start: one whole 16-bit copy and 1.7 GiB more, nothing sharded.
    assert 0 < 14678 * MIB - copy < 2 * GIB


def test_e02_gptj_is_not_sharded_when_measured() -> None:
    """E02: estimated 0.77 GiB, observed 13 GB on 2 and on 4 GPUs: 2.1 bytes per parameter, independent of N."""
    params = 6.05e9
    assert memory.deepspeed_zero3_estimate(params, 206438400, 2).device_bytes / GIB == pytest.approx(
        0.77, rel=0.02
    )
    assert memory.model_states(params, 1, 0, "frozen-2").total_bytes / GIB == pytest.approx(11.27, rel=0.02)
    reading = memory.sharding_reading(params, [(2, 13e9), (4, 13e9)])
    assert reading.bytes_per_parameter[0] == pytest.approx(2.1, rel=0.03)
    assert reading.verdict == "unsharded 16-bit weights"


def test_e06_zero2_saves_less_than_its_buckets_cost() -> None:
    """E06: 340M on 4 ranks saves 0.51 GB from stage 1 to 2; 559M on 2 ranks: 5.59, 5.03, 4.47 GB; a bucket is 1 GB."""
    first = [memory.model_states(340e6, 4, stage).total_bytes / GB for stage in (1, 2)]
    assert first == pytest.approx([2.38, 1.87], rel=0.02)
    saving = (first[0] - first[1]) * GB
    assert saving / GB == pytest.approx(0.51, rel=0.02)
    second = [memory.model_states(559e6, 2, stage).total_bytes / GB for stage in (1, 2, 3)]
    assert second == pytest.approx([5.59, 5.03, 4.47], rel=0.02)
    assert memory.deepspeed_bucket_bytes(500e6) == 1.0 * GB
    assert memory.deepspeed_bucket_bytes(500e6) > saving


# ---------------------------------------------------------------- calculators and books


def test_e03_three_formulas_for_zero2() -> None:
    """E03: 15.93 (gradients whole), 11.28 (corrected), 9.96 GiB (the paper, no fp32 gradients)."""
    params, ranks = 2.851e9, 8
    old = memory.deepspeed_zero2_estimate(
        params, ranks, offload_optimizer=False, corrected=False
    ).device_bytes
    new = memory.deepspeed_zero2_estimate(params, ranks, offload_optimizer=False).device_bytes
    paper = memory.model_states(params, ranks, 2).total_bytes
    assert [old / GIB, new / GIB, paper / GIB] == pytest.approx([15.93, 11.28, 9.96], rel=0.005)
    # The itemised recipe says where the three part: gradients whole; fp32 gradients kept; not kept.
    assert memory.model_states(params, ranks, 1, "deepspeed-20").total_bytes == pytest.approx(old)
    assert memory.model_states(params, ranks, 2, "deepspeed-20").total_bytes == pytest.approx(new)


@pytest.mark.parametrize(
    ("recipe", "expected_gb", "fits"),
    [
        ("fp32-adam-12", 80.9, True),
        ("fp32-adam-16", 107.8, True),
        ("megatron-18", 121.3, True),
        ("deepspeed-20", 134.8, False),
    ],
)
def test_e11_bytes_per_parameter(recipe: str, expected_gb: float, fits: bool) -> None:
    """E11: 6.74B with Adam in 128 GB: yes at 12, 16 and 18 bytes per parameter, no at 20."""
    bill = memory.budget(memory.model_states(6.74e9, 1, 0, recipe), context_bytes=0, capacity_bytes=128e9)
    assert bill.total_bytes / GB == pytest.approx(expected_gb, rel=0.01)
    assert bill.fits == fits


@pytest.mark.parametrize(
    ("params", "printed_gb", "right_gb", "pure_16bit_gb"),
    [(6.7e9, 54, 107.2, 53.6), (70.55e9, 300, 1128.8, 564.4), (7e9, 70, 112.0, 56.0)],
)
def test_e12_printed_memory_numbers(
    params: float, printed_gb: float, right_gb: float, pure_16bit_gb: float
) -> None:
    """E12: printed figures for full training are about half of 16 bytes per parameter, or less."""
    right = memory.model_states(params).total_bytes / GB
    assert right == pytest.approx(right_gb, rel=0.01)
    assert memory.model_states(params, 1, 0, "bf16-adam-8").total_bytes / GB == pytest.approx(
        pure_16bit_gb, rel=0.01
    )
    assert printed_gb < 0.65 * right


# ---------------------------------------------------------------- ZeRO-3 and FSDP on a network


def test_e07_frozen_weights_are_gathered_all_the_same() -> None:
    """E07: 8.03B in 16 bits, 16 ranks, 10 Gb/s: 30.1 GB and 24.1 s per micro-step; LoRA's own gradients 79 MB, 0.06 s."""
    link = 10e9 / 8
    step = communication.data_traffic(8.03e9, 16, 3, trainable_params=21e6)
    assert step.all_gather_bytes / GB == pytest.approx(30.1, rel=0.01)
    assert step.all_gather_bytes / link == pytest.approx(24.1, rel=0.01)
    adapters = communication.data_traffic(8.03e9, 16, 0, trainable_params=21e6).total_bytes
    assert adapters / MB == pytest.approx(79, rel=0.01)
    assert adapters / link == pytest.approx(0.06, rel=0.1)
    # 86 s more on two boxes (4 -> 90): three to four micro-steps, which accumulation does not amortise.
    assert 86 / (step.total_bytes / link) == pytest.approx(3.6, rel=0.1)
    accumulated = communication.data_traffic(8.03e9, 16, 3, 4, trainable_params=21e6)
    assert accumulated.total_bytes == pytest.approx(4 * step.total_bytes)


def test_e08_shard_inside_the_node() -> None:
    """E08: 21.7 samples/s on one node; hybrid 40.8 on 2 and 74.41 on 4 nodes, full sharding 55.349 on 4."""
    measured = [
        communication.throughput_efficiency(rate, nodes, 21.7)
        for rate, nodes in ((40.8, 2), (74.41, 4), (55.349, 4))
    ]
    assert measured == pytest.approx([0.94, 0.857, 0.638], rel=0.01)
    assert measured[1] / measured[2] == pytest.approx(1.34, rel=0.01)
    # The model says why: with 4 nodes of 8 the slow network carries a sixteenth of the bytes per rank.
    full = communication.data_traffic(2e9, 32, 3).total_bytes
    hybrid = communication.hybrid_shard_traffic(2e9, 32, 8)
    assert full / hybrid.across_bytes == pytest.approx(3 * 31 / 32 / (2 / 8 * 3 / 4))
    assert hybrid.inside_bytes == pytest.approx(3 * 7 / 8 * 4e9)


def test_e09_accumulation_does_not_help_fsdp() -> None:
    """E09: global batch 256, micro-batch 2, 4 GPUs: 32 micro-steps; FSDP sends 48x what DDP does; 8034 vs 1747 tok/s."""
    steps = batch.accumulation_steps(256, 2, 4)
    assert steps == 32
    ddp = communication.data_traffic(1e9, 4, 0, steps).total_bytes
    fsdp = communication.data_traffic(1e9, 4, 3, steps).total_bytes
    assert fsdp / ddp == pytest.approx(48)
    assert communication.zero_volume_ratio(3, steps) == pytest.approx(48)
    assert communication.throughput_efficiency(8034, 1, 1747) == pytest.approx(4.6, rel=0.01)


# ---------------------------------------------------------------- tensor parallel


def test_g02_tensor_parallel_over_pcie() -> None:
    """G02: 80 layers of 8192 on 2 GPUs, 16,384 tokens at 378.87 tok/s against 1045.8 with layers split: 42.9 GB."""
    sent = tensor.forward_sent_bytes(16384, 1, 8192, 80, 2)
    assert sent / 16384 / MB == pytest.approx(2.62, rel=0.01)
    assert sent / GB == pytest.approx(42.9, rel=0.01)
    tp_s, split_s = 16384 / 378.87, 16384 / 1045.8
    assert [tp_s, split_s] == pytest.approx([43.2, 15.7], rel=0.01)
    # Perfect tensor parallelism would halve the compute of the layer split; no gain at all is the other end.
    bracket = [sent / (tp_s - split_s / 2) / GB, sent / (tp_s - split_s) / GB]
    assert bracket == pytest.approx([1.2, 1.6], rel=0.15)


# ---------------------------------------------------------------- gradient accumulation, learning rate


def test_h01_accumulation_that_saves_nothing() -> None:
    """H01: 10.8 s compute, 11.4 s synchronisation, k = 4: 88.8 s when every micro-step synchronises, 54.6 s when not."""
    compute, sync = 10.8, 11.4
    broken = batch.accumulated_step_time_s(compute, sync, 4, sync_every_micro_batch=True)
    fixed = batch.accumulated_step_time_s(compute, sync, 4)
    assert broken == pytest.approx(88.8, rel=0.01)
    assert fixed == pytest.approx(54.6, rel=0.01)
    for measured in (54.3, 54.3, 54.9):
        assert measured == pytest.approx(fixed, rel=0.01)
    assert broken / fixed == pytest.approx(1.63, rel=0.01)
    limit = batch.accumulated_step_time_s(compute, sync, 1) / compute
    assert limit == pytest.approx(2.06, rel=0.01)


def test_h02_last_micro_step_not_synchronised() -> None:
    """H02: the flag set after the forward pass leaves ranks with different gradients; loss 4.8797 for 4.1533."""
    gradients = [[1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 0.0, 5.0]]
    right = batch.ddp_gradients(gradients)
    assert right == [9.0, 9.0]
    assert right[0] == pytest.approx(sum(sum(mine) for mine in gradients) / 2)
    late = batch.ddp_gradients(gradients, [False, False, False, False])
    assert late == [10.0, 8.0]
    assert late[0] != late[1]
    # Synchronising in every micro-step averages what is already averaged: the same result, four times the traffic.
    assert batch.ddp_gradients(gradients, [True] * 4) == pytest.approx(right)


def test_h04_tokens_not_micro_batches() -> None:
    """H04: 10 tokens of loss 2 and 90 of loss 1: 1.10 per token, 1.50 as a mean of means, 36.4 % too much."""
    answer = batch.token_average([10, 90], [2.0, 1.0])
    assert (answer.per_token, answer.mean_of_means) == pytest.approx((1.1, 1.5))
    assert answer.relative_error == pytest.approx(0.364, abs=0.001)
    # On two ranks that average: sums times 2/100 average to the mean over all tokens; times 1/100 to half of it.
    sums = [10 * 2.0, 90 * 1.0]
    right = batch.token_loss_scale(100, 2)
    forgotten = batch.token_loss_scale(100, 2, averages=False)
    assert sum(value * right for value in sums) / 2 == pytest.approx(1.1)
    assert sum(value * forgotten for value in sums) / 2 == pytest.approx(0.5 * 1.1)


def test_h05_scheduler_steps() -> None:
    """H05: 100 batches, 10 epochs, accumulation 4: 250 updates, 25 of warm-up; 2e-6 after one; 320 samples each."""
    plan = batch.scheduler_plan(100, 10, 4, 0.1, micro_batch=10, data_parallel=8)
    assert (plan.optimizer_steps, plan.warmup_updates, plan.global_batch) == (250, 25, 320)
    assert plan.micro_steps == 1000
    assert batch.warmup_learning_rate(1, 25, 5e-5) == pytest.approx(2e-6)
    # Counting micro-steps everywhere gives the same: 4 of 100.
    assert batch.warmup_learning_rate(4, 100, 5e-5) == pytest.approx(2e-6)
    early = [
        batch.scheduler_plan(100, 10, 4, 0.1, scheduler_steps_per_update=k).warmup_ends_after_updates
        for k in (4, 8)
    ]
    assert [round(value) for value in early] == [6, 3]


def test_h06_average_or_sum() -> None:
    """H06: 4 ranks of 64 are one batch of 256 for a mean loss; a sum loss comes out a quarter; lr x4 or x2, by choice."""
    assert batch.global_batch(64, 1, 4) == 256
    per_rank_mean = [[0.4], [0.8], [1.2], [1.6]]
    assert batch.ddp_gradients(per_rank_mean) == pytest.approx([1.0] * 4)
    per_rank_sum = [[64 * mine[0]] for mine in per_rank_mean]
    wanted_sum = sum(mine[0] for mine in per_rank_sum)
    assert batch.ddp_gradients(per_rank_sum)[0] / wanted_sum == pytest.approx(0.25)
    assert batch.scaled_learning_rate(0.1, 64, 256) == pytest.approx(0.4)
    assert batch.scaled_learning_rate(0.1, 64, 256, "sqrt") == pytest.approx(0.2)
    # Same global batch: nothing to scale.
    assert batch.scaled_learning_rate(0.1, 256, batch.global_batch(64, 1, 4)) == pytest.approx(0.1)


# ---------------------------------------------------------------- resume


def test_i01_resume_position() -> None:
    """I01: 125 steps per epoch, resume at 200: epoch 1, offset 75, the order of seed + 1, not of seed + 0."""
    position = batch.data_position(200, 125)
    assert (position.epoch, position.offset) == (1, 75)
    right = batch.epoch_order(1000, 7, position.epoch)
    assert right == batch.epoch_order(1000, 8, 0)
    assert right != batch.epoch_order(1000, 7, position.epoch, set_epoch=False)


def test_i04_replayed_shards() -> None:
    """I04: resumed at 25,671 without the data position, stopped at 62,000 of 155,000; perplexity 251 then 782."""
    lost = batch.resume_coverage(155_000, 25_671, 62_000, position_saved=False)
    assert lost.finished_fraction == pytest.approx(0.4, rel=0.01)
    assert lost.read_twice == 25_671
    assert lost.read_once == (62_000 - 25_671) - 25_671
    assert lost.read_once + lost.read_twice + lost.never_read == 155_000
    kept = batch.resume_coverage(155_000, 25_671, 62_000, position_saved=True)
    assert (kept.read_once, kept.read_twice) == (62_000, 0)


# ---------------------------------------------------------------- checkpoints


def test_j02_rank_0_writes_alone() -> None:
    """J02: a save of 10,480 s; all ranks done at 21:24, rank 0 at 22:32: 68 minutes, 39 % of the save."""
    alone = (22 * 60 + 32 - 21 * 60 - 24) * 60
    tail = checkpoint.write_tail([10480.0] + [10480.0 - alone] * 7)
    assert tail.last_rank == 0
    assert tail.tail_s / 60 == 68
    assert tail.tail_share == pytest.approx(0.39, rel=0.02)


def test_j03_blocked_time_and_time_to_disk() -> None:
    """J03: 96.4 GB, 27.34 s synchronous, 0.54 s blocked when asynchronous, every 600 s: 4.36 and 0.09 %; 3.5 GB/s."""
    day = 86400.0
    sync = checkpoint.checkpoint_cost(600, 27.34, day)
    behind = checkpoint.async_checkpoint(0.54, 27.34, day, interval_s=600)
    assert sync.overhead_fraction == pytest.approx(0.0436, rel=0.03)
    assert behind.overhead_fraction == pytest.approx(0.0009, rel=0.03)
    size = checkpoint.checkpoint_bytes(8.03e9, "adam-12")
    assert size / GB == pytest.approx(96.4, rel=0.001)
    assert checkpoint.transfer_time_s(size, 3.5e9) == pytest.approx(27.34, rel=0.03)
    assert checkpoint.young_interval_s(27.34, day) == pytest.approx(2174, rel=0.03)
    # Blocked time is not time to disk: the work at risk is half a period and the whole write.
    assert behind.lost_work_s == pytest.approx(600.54 / 2 + 27.34)


# ---------------------------------------------------------------- stragglers


def test_k01_straggler_report() -> None:
    """K01: min 9.17, mean 9.55, max 10.12 ms: 1.104 over min, 1.060 over mean, 5.6 % of rank time lost."""
    ratios = stragglers.straggler_ratios(9.17e-3, 9.55e-3, 10.12e-3)
    assert ratios.max_over_min == pytest.approx(1.104, rel=0.01)
    assert ratios.max_over_mean == pytest.approx(1.06, rel=0.01)
    assert ratios.lost_fraction == pytest.approx(0.056, rel=0.01)
    # Rank 2 is slow, so the others wait in the collective and rank 2 does not.
    report = stragglers.straggler_report([9.17e-3, 9.30e-3, 10.12e-3, 9.61e-3])
    assert report.slowest_rank == 2
    assert stragglers.straggler_from_collectives(report.waiting_s) == 2


# ---------------------------------------------------------------- data sharding


@pytest.mark.parametrize(
    ("samples", "ranks", "padded", "duplicates", "kept", "bias"),
    [(10, 3, 12, 2, 9, 0.167), (21, 2, 22, 1, 20, 0.045)],
)
def test_l02_padding_of_a_small_evaluation_set(
    samples: int, ranks: int, padded: int, duplicates: int, kept: int, bias: float
) -> None:
    """L02: 10 samples on 3 ranks are read as 12, 21 on 2 as 22; drop_last reads 9 and 20."""
    plan = batch.shard_plan(samples, ranks)
    assert (plan.used, plan.duplicates) == (padded, duplicates)
    assert plan.metric_bias == pytest.approx(bias, abs=0.001)
    assert batch.shard_plan(samples, ranks, drop_last=True).used == kept


def test_l03_set_epoch() -> None:
    """L03: 7 samples, 2 ranks, 3 epochs, seed 0: one order without set_epoch, three with; 4 samples per rank."""
    without = {tuple(batch.epoch_order(7, 0, epoch, set_epoch=False)) for epoch in range(3)}
    with_it = {tuple(batch.epoch_order(7, 0, epoch)) for epoch in range(3)}
    assert (len(without), len(with_it)) == (1, 3)
    assert batch.shard_plan(7, 2).per_rank == math.ceil(7 / 2) == 4
    # All ranks draw from the same order: together they read every sample.
    for order in with_it:
        read = [sample for rank in range(2) for sample in batch.rank_samples(list(order), 2, rank)]
        assert set(read) == set(range(7))


def test_l04_uneven_shards_hang() -> None:
    """L04: 10 samples in contiguous slices of 4 on 3 ranks: 4, 4, 2: safe for 2 steps, then ranks 0 and 1 wait."""
    counts = batch.contiguous_counts(10, 3)
    assert counts == [4, 4, 2]
    answer = batch.uneven_steps(counts)
    assert answer.hangs
    assert answer.safe_steps == 2
    assert answer.waiting_ranks == [0, 1]
    assert answer.finished_ranks == [2]
    padded, dropped = batch.shard_plan(10, 3), batch.shard_plan(10, 3, drop_last=True)
    assert (padded.per_rank, padded.duplicates) == (4, 2)
    assert (dropped.per_rank, dropped.used) == (3, 9)
    assert not batch.uneven_steps([padded.per_rank] * 3).hangs

"""Published training steps: what ran, on what, how long it took. The tests and chapter 13 predict them.

Times are measured by the papers' authors (or follow from their printed throughput, as said). Nothing here is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.hardware import Cluster, cluster
from shardlab.transformer import Transformer, gpt, hardware_flops, llama, model_flops, preset


@dataclass(frozen=True)
class PublishedStep:
    """One measured step.

    Attributes:
        label: short name of the row.
        model, cluster, sequence, global_batch: what ran.
        software: a name of :data:`shardlab.models.software.SOFTWARE`.
        data, tensor, pipeline, context: parallel degrees.
        micro_batches, chunks: candidates: one value where the source prints it; several where it does not, and the
            prediction then takes the fastest, as the authors did when they tuned.
        recompute, sequence_parallel: as in :class:`shardlab.models.plan.Layout`.
        zero_stage: 0, or 1 for a distributed optimizer.
        step_s: the measured step, seconds.
        source: paper and table.
    """

    label: str
    model: Transformer
    cluster: Cluster
    sequence: int
    global_batch: int
    software: str
    data: int
    tensor: int
    pipeline: int
    context: int
    micro_batches: tuple[int, ...]
    chunks: tuple[int, ...]
    recompute: str
    sequence_parallel: bool
    zero_stage: int
    step_s: float
    source: str


def korthikanti_layer_times() -> tuple[tuple[str, bool, float, float], ...]:
    """(recompute, sequence parallel, forward s, backward s) of one layer of the 22B model, micro-batch 4, 8 A100.

    Source: Korthikanti et al. (arXiv 2205.05198), Table 4.
    """
    return (
        ("none", False, 7.7e-3, 11.9e-3),
        ("none", True, 7.2e-3, 11.8e-3),
        ("full", False, 7.7e-3, 19.5e-3),
        ("selective", False, 7.7e-3, 13.2e-3),
        ("selective", True, 7.2e-3, 13.1e-3),
    )


def korthikanti_steps() -> tuple[PublishedStep, ...]:
    """The eight steps of Table 5: four models, full recomputation and sequence parallel with selective.

    Interleaving with three chunks is stated for 175B and 530B only; the 1T model has two layers per stage.

    Source: Korthikanti et al. (arXiv 2205.05198), Tables 3 and 5, section 6.
    """
    rows = (
        ("korthikanti-22b", 1, 1, 4, 4, 1.42, 1.10),
        ("korthikanti-175b", 8, 3, 64, 1, 18.13, 13.75),
        ("korthikanti-530b", 35, 3, 280, 1, 49.05, 37.83),
        ("korthikanti-1t", 64, 1, 512, 1, 94.42, 71.49),
    )
    steps = []
    for name, pipeline, chunks, batch, micro_batch, full_s, selective_s in rows:
        for recompute, seconds in (("full", full_s), ("selective", selective_s)):
            steps.append(
                _step(
                    label=name + " " + recompute,
                    model=preset(name),
                    ranks=8 * pipeline,
                    batch=batch,
                    software="megatron-2022",
                    tensor=8,
                    pipeline=pipeline,
                    micro_batches=(micro_batch,),
                    chunks=(chunks,),
                    recompute=recompute,
                    sequence_parallel=recompute == "selective",
                    step_s=seconds,
                    source="Korthikanti et al. (arXiv 2205.05198), Table 5",
                )
            )
    return tuple(steps)


def korthikanti_data_parallel_step() -> PublishedStep:
    """The 530B model with 8-way data parallelism on 2,240 GPUs: 39.15 s, no overlap.

    Source: Korthikanti et al. (arXiv 2205.05198), section 6.3.
    """
    return _step(
        label="korthikanti-530b x8",
        model=preset("korthikanti-530b"),
        ranks=2240,
        batch=2240,
        software="megatron-2022",
        tensor=8,
        pipeline=35,
        micro_batches=(1,),
        chunks=(3,),
        recompute="selective",
        sequence_parallel=True,
        step_s=39.15,
        source="Korthikanti et al. (arXiv 2205.05198), section 6.3",
    )


def sc21_steps() -> tuple[PublishedStep, ...]:
    """The ten steps of SC21's Table 1; seconds follow from the printed TFLOP/s, which count recomputation (eq. 3).

    Micro-batch and chunks are not printed: candidates are given, all powers of two that divide.

    Source: Narayanan et al. (arXiv 2104.04473), Table 1 and section 5.1.
    """
    rows = (
        ("sc21-1.7b", 1, 1, 32, 512, 137),
        ("sc21-3.6b", 2, 1, 64, 512, 138),
        ("sc21-7.5b", 4, 1, 128, 512, 142),
        ("sc21-18.4b", 8, 1, 256, 1024, 135),
        ("sc21-39.1b", 8, 2, 512, 1536, 138),
        ("sc21-76.1b", 8, 4, 1024, 1792, 140),
        ("sc21-145.6b", 8, 8, 1536, 2304, 148),
        ("sc21-310.1b", 8, 16, 1920, 2160, 155),
        ("mt-nlg-530b", 8, 35, 2520, 2520, 163),
        ("sc21-1008b", 8, 64, 3072, 3072, 163),
    )
    steps = []
    for name, tensor, pipeline, ranks, batch, teraflops in rows:
        model = preset(name)
        per_stage = model.layers // pipeline
        steps.append(
            _from_teraflops(
                label=name,
                model=model,
                ranks=ranks,
                batch=batch,
                tensor=tensor,
                pipeline=pipeline,
                micro_batches=(1, 2, 4, 8, 16),
                chunks=(1,) if pipeline == 1 else tuple([v for v in (2, 3, 4, 5, 6) if per_stage % v == 0]),
                teraflops=teraflops,
                source="SC21 (arXiv 2104.04473), Table 1",
            )
        )
    return tuple(steps)


def sc21_table2_steps() -> tuple[PublishedStep, ...]:
    """The six PTD-P steps of SC21's Table 2: micro-batch 1, model-parallel size 96 (8 x 12) and 280 (8 x 35).

    Source: Narayanan et al. (arXiv 2104.04473), Table 2.
    """
    rows = (
        ("gpt3-175b", 12, 384, 1536, 153),
        ("gpt3-175b", 12, 768, 1536, 149),
        ("gpt3-175b", 12, 1536, 1536, 141),
        ("mt-nlg-530b", 35, 560, 2240, 171),
        ("mt-nlg-530b", 35, 1120, 2240, 167),
        ("mt-nlg-530b", 35, 2240, 2240, 159),
    )
    steps = []
    for name, pipeline, ranks, batch, teraflops in rows:
        model = preset(name)
        per_stage = model.layers // pipeline
        steps.append(
            _from_teraflops(
                label=f"{name} on {ranks}",
                model=model,
                ranks=ranks,
                batch=batch,
                tensor=8,
                pipeline=pipeline,
                micro_batches=(1,),
                chunks=tuple([v for v in (1, 2, 3, 4) if per_stage % v == 0]),
                teraflops=teraflops,
                source="SC21 (arXiv 2104.04473), Table 2",
            )
        )
    return tuple(steps)


def megascale_steps() -> tuple[PublishedStep, ...]:
    """The eight Megatron-LM steps of MegaScale's Table 2: 175B, TP 8, PP 8, six chunks, 2048 tokens.

    Recomputation, micro-batch and attention kernel are not printed. Taken as Megatron's practice of that time:
    micro-batch 1, sequence parallelism with selective recomputation, distributed optimizer.

    Source: Jiang et al., MegaScale (arXiv 2402.15627), Tables 1 and 2, section 6.1.
    """
    rows = (
        (768, 256, 40.0),
        (768, 512, 21.2),
        (768, 768, 15.2),
        (768, 1024, 11.9),
        (6144, 3072, 29.02),
        (6144, 6144, 14.78),
        (6144, 8192, 12.24),
        (6144, 12288, 8.57),
    )
    return tuple(
        [
            _step(
                label=f"megascale-175b on {ranks}",
                model=preset("megascale-175b"),
                ranks=ranks,
                batch=batch,
                software="megatron-2022",
                tensor=8,
                pipeline=8,
                micro_batches=(1,),
                chunks=(6,),
                recompute="selective",
                sequence_parallel=True,
                step_s=seconds,
                source="MegaScale (arXiv 2402.15627), Table 2, Megatron-LM rows",
            )
            for batch, ranks, seconds in rows
        ]
    )


def sc21_zero3_steps() -> tuple[PublishedStep, ...]:
    """ZeRO-3 without model parallelism, as SC21's Table 2 measured it for GPT-3 on 384, 768 and 1,536 GPUs.

    144, 88 and 44 TFLOP/s at micro-batch 4, 2 and 1. The steps stop getting shorter at 67 s, which line rate alone does
    not explain: its 1 TB of gathers and reductions takes 8 s at 130 GB/s per node.

    Source: Narayanan et al. (arXiv 2104.04473), Table 2, "ZeRO-3 without model parallelism".
    """
    return tuple(
        [
            _from_teraflops(
                label=f"gpt3-175b ZeRO-3 on {ranks}",
                model=preset("gpt3-175b"),
                ranks=ranks,
                batch=1536,
                tensor=1,
                pipeline=1,
                micro_batches=(micro_batch,),
                chunks=(1,),
                teraflops=teraflops,
                source="SC21 (arXiv 2104.04473), Table 2",
                software="megatron-deepspeed",
                zero_stage=3,
            )
            for ranks, micro_batch, teraflops in ((384, 4, 144), (768, 2, 88), (1536, 1, 44))
        ]
    )


def llama3_steps() -> tuple[PublishedStep, ...]:
    """Llama 3 405B at 8,192 tokens on 8,192 and 16,384 H100: seconds follow from the printed 430 and 400 TFLOP/s.

    The first row set the H100's ``sustained``; the second is a prediction. Modelled with 128 layers: the real 126 leave
    one out on the first and the last of 16 stages, where embedding and output head sit. FLOP count all attention
    scores, which at this length is 4 % more than the causal half. The 131,072-token row is left out, as there the two
    ways of counting differ by 40 % and the paper does not say which it used. Chunks are not printed: one layer each is
    taken. The paper shards gradients too without saying how often it reduces them; here once per step (stage 1).

    Source: Llama 3 herd (arXiv 2407.21783), Table 4 and section 3.3.2.
    """
    model = llama(
        128, 16_384, 128, 8, 53_248, 128_256, name="llama3-405b, 128 layers", source="arXiv 2407.21783"
    )
    steps = []
    for ranks, teraflops in ((8192, 430), (16_384, 400)):
        flops = model_flops(model, 8192, 2048)
        steps.append(
            _step(
                label=f"llama3-405b on {ranks}",
                model=model,
                ranks=ranks,
                batch=2048,
                software="megatron-core",
                tensor=8,
                pipeline=16,
                micro_batches=(1,),
                chunks=(8,),
                recompute="none",
                sequence_parallel=True,
                step_s=flops / (ranks * teraflops * 1e12),
                source="Llama 3 (arXiv 2407.21783), Table 4",
                sequence=8192,
                node="dgx-h100",
                zero_stage=1,
            )
        )
    return tuple(steps)


def mt_nlg_steps() -> tuple[PublishedStep, ...]:
    """MT-NLG 530B, batch 1920, on 280, 350 and 420 DGX A100: 60.1, 50.2 and 44.4 s per step.

    Micro-batch, interleaving and optimizer sharding are not printed. The steps are about 20 % slower than SC21's for the
    same model, layout and GPUs per replica, so a model that fits the one misses the other.

    Source: Smith et al. (arXiv 2201.11990), section 2.4, as quoted by llm-analysis.
    """
    return tuple(
        [
            _step(
                label=f"mt-nlg-530b on {ranks}",
                model=preset("mt-nlg-530b"),
                ranks=ranks,
                batch=1920,
                software="megatron-deepspeed",
                tensor=8,
                pipeline=35,
                micro_batches=(1,),
                chunks=(1,),
                recompute="full",
                sequence_parallel=False,
                step_s=seconds,
                source="MT-NLG (arXiv 2201.11990), section 2.4",
                zero_stage=1,
            )
            for ranks, seconds in ((2240, 60.1), (2800, 50.2), (3360, 44.4))
        ]
    )


def vtrain_step(row: Any) -> PublishedStep:
    """A step from one row (a dict of column names) of vTrain's ``measured_iterations.csv``.

    Megatron-DeepSpeed, 1F1B, 8 A100 and 800 Gb/s per node. Full recomputation is read from the data: without it the
    3.6B model at micro-batch 8 and tensor parallel 1 would keep 200 GB of activations on an 80 GB device, and with
    it the fastest rows run at 140 TFLOP/s, as SC21's do; vTrain's own configurations say ``use_checkpoint: true``.

    Raises:
        KeyError, ValueError: a column is missing or not a number.

    Source: Bang et al., vTrain (arXiv 2312.12391), MIT-licensed measurements.
    """

    def number(column: str) -> int:
        return int(float(row[column]))

    tensor = number("tensor parallelism")
    pipeline = number("pipeline parallelism")
    data = number("data parallelism")
    micro_batch = number("micro batch")
    size = str(row["Parameters (billion)"]).strip()
    return _step(
        label=f"{size}B t{tensor} d{data} p{pipeline} b{micro_batch}",
        model=gpt(
            number("# layers"),
            number("hidden size"),
            number("attention heads"),
            positions=number("sequence length"),
            name=size + "B",
            source="vTrain (arXiv 2312.12391)",
        ),
        ranks=number("# GPUs"),
        batch=number("global batch"),
        software="megatron-deepspeed",
        tensor=tensor,
        pipeline=pipeline,
        micro_batches=(micro_batch,),
        chunks=(1,),
        recompute="full",
        sequence_parallel=False,
        step_s=float(row["iteration time (ms)"]) / 1e3,
        source="vTrain (arXiv 2312.12391), measured_iterations.csv",
        sequence=number("sequence length"),
        node="a100-4xhdr",
    )


def _step(
    label: str,
    model: Transformer,
    ranks: int,
    batch: int,
    software: str,
    tensor: int,
    pipeline: int,
    micro_batches: tuple[int, ...],
    chunks: tuple[int, ...],
    recompute: str,
    sequence_parallel: bool,
    step_s: float,
    source: str,
    sequence: int = 2048,
    node: str = "dgx-a100",
    zero_stage: int = 0,
) -> PublishedStep:
    return PublishedStep(
        label=label,
        model=model,
        cluster=cluster(node, ranks),
        sequence=sequence,
        global_batch=batch,
        software=software,
        data=ranks // (tensor * pipeline),
        tensor=tensor,
        pipeline=pipeline,
        context=1,
        micro_batches=micro_batches,
        chunks=chunks,
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        zero_stage=zero_stage,
        step_s=step_s,
        source=source,
    )


def _from_teraflops(
    label: str,
    model: Transformer,
    ranks: int,
    batch: int,
    tensor: int,
    pipeline: int,
    micro_batches: tuple[int, ...],
    chunks: tuple[int, ...],
    teraflops: float,
    source: str,
    software: str = "megatron-2021",
    zero_stage: int = 0,
) -> PublishedStep:
    flops = hardware_flops(model, 2048, batch, "full")
    return _step(
        label=label,
        model=model,
        ranks=ranks,
        batch=batch,
        software=software,
        zero_stage=zero_stage,
        tensor=tensor,
        pipeline=pipeline,
        micro_batches=micro_batches,
        chunks=chunks,
        recompute="full",
        sequence_parallel=False,
        step_s=flops / (ranks * teraflops * 1e12),
        source=source,
    )

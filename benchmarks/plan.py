"""How fast the planner is: layouts per second, a full search, import time, and beside llm-analysis 0.2.2.

    .venv/bin/python benchmarks/plan.py

Every line gives a ratio to its aim (above 1 is better than the aim): 20,000 layouts/s on one core, a full search for
70B on 1,024 GPUs within 2 s, imports within 50 ms. The comparison needs ``pip install llm-analysis==0.2.2`` in this
interpreter, and is skipped with a message without it. Each figure is the best of several runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardlab.hardware import Cluster, cluster
from shardlab.models import plan
from shardlab.models.published import PublishedStep, sc21_table2_steps
from shardlab.transformer import Transformer, preset

LAYOUTS_PER_S, SEARCH_S, IMPORT_S = 20_000, 2.0, 0.050


def fastest_s(call: Callable[[], object], repeats: int) -> float:
    """Least seconds of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def search_rows() -> None:
    """Layouts per second of searches with default and with all options."""
    wide: dict[str, Any] = {
        "context": (1, 2, 4, 8, 16),
        "schedules": ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2"),
        "micro_batches": (1, 2, 3, 4, 6, 8, 12, 16),
    }
    questions: list[tuple[str, Transformer, Cluster, int, int, dict[str, Any]]] = [
        ("8B on 64 H100", preset("llama3-8b"), cluster("dgx-h100", 64), 512, 8192, {}),
        ("70B on 1,024 H100", preset("llama3-70b"), cluster("dgx-h100", 1024), 1024, 8192, {}),
        ("70B on 1,024 H100, all", preset("llama3-70b"), cluster("dgx-h100", 1024), 1024, 8192, wide),
        ("Mixtral on 128 H100", preset("mixtral-8x7b"), cluster("dgx-h100", 128), 1024, 4096, {}),
        ("530B on 2,240 A100", preset("mt-nlg-530b"), cluster("dgx-a100", 2240), 2240, 2048, {}),
    ]
    print(
        f"{'search':26} {'layouts':>8} {'fit':>8} {'layouts/s':>10} {'aim':>6} {'with results':>13} {'aim':>6}"
    )
    for title, model, where, batch, sequence, options in questions:
        runs: list[plan.SearchRun] = []

        def tried(
            model: Transformer = model,
            where: Cluster = where,
            batch: int = batch,
            sequence: int = sequence,
            options: dict[str, Any] = options,
            runs: list[plan.SearchRun] = runs,
        ) -> None:
            run = plan.SearchRun(model, where, batch, sequence, **options)
            while not run.advance(100_000):
                pass
            runs.append(run)

        seconds = fastest_s(tried, 3)
        run = runs[-1]
        whole = seconds + fastest_s(lambda run=run: run.result(10), 3)  # type: ignore[misc]
        rate = run.tried / seconds
        print(
            f"{title:26} {run.tried:8,} {len(run.fitting):8,} {rate:10,.0f} {rate / LAYOUTS_PER_S:5.2f}x "
            f"{whole:11.3f} s {SEARCH_S / whole:5.2f}x"
        )


def predict_row() -> None:
    """One layout, with its dataclasses and checks, from nothing."""
    model, where = preset("llama3-70b"), cluster("dgx-h100", 1024)
    split = plan.layout(data=32, tensor=8, pipeline=4, zero_stage=1, chunks=5)
    seconds = fastest_s(lambda: plan.predict(model, where, split, 1024, 8192), 200)
    print(f"\none predict() call: {seconds * 1e6:.0f} µs")


def import_rows() -> None:
    """Import time above that of a bare interpreter."""

    def start(code: str) -> float:
        return fastest_s(lambda: subprocess.run([sys.executable, "-c", code], check=True), 7)

    bare = start("pass")
    print()
    for name in ("shardlab.models", "shardlab.models.plan"):
        seconds = max(start(f"import {name}") - bare, 1e-6)
        print(f"import {name:22} {seconds * 1e3:6.1f} ms   {IMPORT_S / seconds:5.2f}x of the aim")


def llm_analysis_step(
    train: Callable[..., dict[str, Any]], step: PublishedStep, config: Path, efficiency: float
) -> float:
    """Seconds of one iteration as llm-analysis sees it."""
    answer = train(
        model_name=str(config),
        gpu_name="a100-sxm-80gb",
        log_level="ERROR",
        batch_size_per_gpu=step.micro_batches[0],
        global_batch_size=step.global_batch,
        seq_len=step.sequence,
        total_num_tokens=step.global_batch * step.sequence,
        activation_recomputation=2,
        tp_size=step.tensor,
        pp_size=step.pipeline,
        dp_size=step.data,
        sp_size=1,
        total_num_gpus=step.cluster.gpus,
        flash_attn=False,
        softmax_dropout=True,
        flops_efficiency=efficiency,
    )
    return float(answer["latency_per_iter"])


def llm_analysis_rows() -> None:
    """SC21's Table 2 (six measured steps), by both, and the time each takes per layout."""
    try:
        from llm_analysis.analysis import train  # type: ignore[import-not-found]
    except ImportError:
        print("\nllm-analysis is not installed here: pip install llm-analysis==0.2.2 to compare")
        return
    steps = sc21_table2_steps()
    print(
        f"\n{'SC21 Table 2':24} {'measured':>9} {'shardlab':>16} {'llm-analysis':>16} {'at 50 % of peak':>16}"
    )
    ours_s = theirs_s = 0.0
    errors: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            model = step.model
            config = Path(folder) / f"{model.name}.json"
            config.write_text(
                json.dumps(
                    {
                        "name": model.name,
                        "num_layers": model.layers,
                        "n_head": model.heads,
                        "hidden_dim": model.hidden,
                        "vocab_size": model.vocabulary,
                        "max_seq_len": step.sequence,
                        "model_type": "gpt",
                    }
                )
            )
            ours = plan.predict_published(step)
            bound = llm_analysis_step(train, step, config, 1.0)
            half = llm_analysis_step(train, step, config, 0.5)
            row = tuple([100 * (value / step.step_s - 1) for value in (ours.step_time_s, bound, half)])
            errors.append((row[0], row[1], row[2]))
            print(
                f"{step.label:24} {step.step_s:7.1f} s {ours.step_time_s:7.1f} {row[0]:+6.1f} % {bound:8.1f} {row[1]:+6.1f} % "
                f"{half:7.1f} {row[2]:+6.1f} %"
            )
            # The same question to both: one layout, everything fixed.
            split = ours.layout
            ours_s += fastest_s(
                lambda step=step, split=split: plan.predict(  # type: ignore[misc]
                    step.model, step.cluster, split, step.global_batch, step.sequence, step.software
                ),
                20,
            )
            theirs_s += fastest_s(
                lambda step=step, config=config: llm_analysis_step(train, step, config, 1.0),  # type: ignore[misc]
                20,
            )
    means = [sum(abs(row[index]) for row in errors) / len(errors) for index in range(3)]
    print(f"{'mean absolute error':24} {'':9} {means[0]:14.1f} % {means[1]:14.1f} % {means[2]:14.1f} %")
    print(
        f"per layout: {ours_s / len(steps) * 1e6:.0f} µs and {theirs_s / len(steps) * 1e6:.0f} µs, "
        f"{theirs_s / ours_s:.1f} times faster"
    )


def main() -> None:
    search_rows()
    predict_row()
    import_rows()
    llm_analysis_rows()


if __name__ == "__main__":
    main()

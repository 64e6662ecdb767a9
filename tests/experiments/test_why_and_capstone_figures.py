"""The pictures of chapters 01 and 13 say in words what the models say in numbers."""

from __future__ import annotations

import re

from shardlab import figures
from shardlab.figures import capstone
from shardlab.models import published
from shardlab.models.memory import model_states, stage_activations
from shardlab.models.plan import predict_published
from shardlab.transformer import parameters, preset


def test_memory_over_a_step_peaks_before_the_gradients_come() -> None:
    model = preset("llama2-7b")
    states = model_states(float(parameters(model)))
    kept = stage_activations(
        model.layers,
        4096,
        1,
        model.hidden,
        model.heads,
        model.vocabulary,
        ffn=model.ffn,
        gated=True,
        flash_attention=True,
        dropout=False,
    )
    peak = states.total_bytes - states.gradients + kept.total_bytes
    text = figures.memory_over_a_step().alt
    assert f"{peak / 1e9:.1f} GB at the end of the forward pass" in text
    assert f"{states.total_bytes / 1e9:.1f} GB at the update" in text
    # Every sequence more raises the peak by its activations, and the update not at all.
    longer = figures.memory_over_a_step(sequence=8192).alt
    assert f"{(peak + kept.total_bytes) / 1e9:.1f} GB at the end" in longer
    assert f"{states.total_bytes / 1e9:.1f} GB at the update" in longer


def test_what_is_split_draws_four_ways_on_two_ranks() -> None:
    picture = figures.what_is_split()
    titles = [axes.get_title() or axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == ["data parallel", "ZeRO-3, FSDP", "tensor parallel", "pipeline parallel"]
    for axes in picture.figure.axes:
        green = [
            patch
            for patch in axes.patches
            if patch.get_width() * patch.get_height() > 0.3 and patch.get_fill()
        ]
        held = sum(patch.get_width() * patch.get_height() for patch in green if patch.get_facecolor()[3])
        whole = 8 if axes.get_title(loc="left") == "data parallel" else 4
        assert abs(held - whole) < 1e-9


def test_predicted_against_measured_counts_what_it_draws() -> None:
    picture = figures.predicted_against_measured()
    axes = picture.figure.axes[0]
    drawn = [(x, y) for line in axes.lines for x, y in zip(*line.get_data(), strict=True)]
    drawn = drawn[2:]  # the line at 1
    steps = [step for _, _, _, rows in capstone._SETS for step in rows()]
    assert len(drawn) == len(steps) == 40
    near = sum(abs(predict_published(step).step_time_s / step.step_s - 1) <= 0.1 for step in steps)
    assert re.search(rf"for {len(steps)} published steps.*{near} lie within 10", picture.alt)
    low, high = axes.get_xlim()
    assert all(low < x < high for x, _ in drawn)
    assert all(axes.get_ylim()[0] < y < axes.get_ylim()[1] for _, y in drawn)
    misses = published.mt_nlg_steps() + published.sc21_zero3_steps()
    ratios = [predict_published(step).step_time_s / step.step_s for step in misses]
    assert 0.65 < min(ratios) < max(ratios) < 0.8

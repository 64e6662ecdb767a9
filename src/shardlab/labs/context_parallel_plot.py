"""The picture of a causal ring: who computes when, and who waits. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

from shardlab.labs.context_parallel import WorkRow
from shardlab.labs.plot import dress, head
from shardlab.palette import color


def work_figure(rings: Sequence[Sequence[WorkRow]], dark: bool = False) -> Any:
    """One panel per ring, one bar per rank: its pairs step by step; a step begins when its busiest rank lets it."""
    figure, panels = plt.subplots(
        len(rings), 1, figsize=(6.4, 1.6 + 1.5 * len(rings)), sharex=True, layout="constrained"
    )
    for axes, ring in zip(panels, rings, strict=True):
        began = 0
        for step in range(len(ring[0].counted)):
            longest = max(row.counted[step] for row in ring)
            for row in ring:
                done = row.counted[step]
                axes.barh(
                    row.rank, done, left=began, color=color("compute", dark), edgecolor=color("surface", dark)
                )
                axes.barh(
                    row.rank,
                    longest - done,
                    left=began + done,
                    color=color("idle", dark),
                    edgecolor=color("surface", dark),
                    hatch="///",
                )
            began += longest
        axes.set_yticks([row.rank for row in ring])
        axes.invert_yaxis()
        axes.set_ylabel("rank")
        head(axes, f"{ring[0].split}: blue computes, grey waits")
    panels[-1].set_xlabel("(query, key) pairs on the critical path, one ring step after another")
    dress(figure, dark)
    return figure

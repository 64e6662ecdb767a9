"""Which layout, how long a step, how much memory: one layout predicted, or all of them searched and ranked.

A step time is a bracket (all communication hidden; none hidden) and a best estimate in between, itemised by cause.
MFU is model FLOP over dense bf16 peak; HFU counts recomputation as work. Strong scaling throughout: the global batch
is fixed.

The numbers come from :mod:`shardlab.models.kernels` (one layer), :mod:`shardlab.models.steptime` (one step) and
:mod:`shardlab.models.memory`; layouts, predictions and the search live in ``plan_layout``, ``plan_predict`` and
``plan_search`` and are names of this module. Step times of published runs on A100 are met within 1.5 to 6 % on average
(``tools/fit_constants.py`` prints every set); data-parallel ZeRO-3 at scale and MT-NLG are missed by 20 to 35 %.
"""

from __future__ import annotations

from shardlab.models.plan_layout import Layout, check, layout
from shardlab.models.plan_predict import Prediction, predict, predict_published
from shardlab.models.plan_search import (
    RESOURCES,
    Rejection,
    RuleTest,
    SearchResult,
    SearchRun,
    Sensitivity,
    scaled_cluster,
    search,
)

__all__ = [
    "RESOURCES",
    "Layout",
    "Prediction",
    "Rejection",
    "RuleTest",
    "SearchResult",
    "SearchRun",
    "Sensitivity",
    "check",
    "layout",
    "predict",
    "predict_published",
    "scaled_cluster",
    "search",
]

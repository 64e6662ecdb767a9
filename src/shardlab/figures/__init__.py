"""The book's still pictures, one module a chapter, drawn by the models and coloured by the palette."""

from __future__ import annotations

from shardlab.figures.antipatterns import damage_overview, slow_rank_timeline
from shardlab.figures.capstone import predicted_against_measured
from shardlab.figures.checkpoints import atomic_save, checkpoint_contents
from shardlab.figures.collectives import message_patterns, rounds_against_bytes, six_collectives
from shardlab.figures.composing import sc21_degrees, two_numberings
from shardlab.figures.context_expert import causal_deal, token_round_trip
from shardlab.figures.data_parallel import data_parallel_step, overlap_timeline
from shardlab.figures.engineering import dealt_samples, waiting_for_the_slowest
from shardlab.figures.pipeline import bubble_curves, pipeline_timelines
from shardlab.figures.production import release_ladder
from shardlab.figures.tensor_parallel import kept_activations, layer_collectives_line, mlp_split
from shardlab.figures.why_distribute import memory_over_a_step, what_is_split
from shardlab.figures.zero import zero_stages

__all__ = [
    "atomic_save",
    "bubble_curves",
    "causal_deal",
    "checkpoint_contents",
    "damage_overview",
    "data_parallel_step",
    "dealt_samples",
    "kept_activations",
    "layer_collectives_line",
    "memory_over_a_step",
    "message_patterns",
    "mlp_split",
    "overlap_timeline",
    "pipeline_timelines",
    "predicted_against_measured",
    "release_ladder",
    "rounds_against_bytes",
    "sc21_degrees",
    "six_collectives",
    "slow_rank_timeline",
    "token_round_trip",
    "two_numberings",
    "waiting_for_the_slowest",
    "what_is_split",
    "zero_stages",
]

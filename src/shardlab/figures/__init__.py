"""The book's still pictures, one module a chapter, drawn by the models and coloured by the palette."""

from __future__ import annotations

from shardlab.figures.data_parallel import data_parallel_step, overlap_timeline

__all__ = ["data_parallel_step", "overlap_timeline"]

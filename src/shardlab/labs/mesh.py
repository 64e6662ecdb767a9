"""The mesh lab: two or three kinds of parallelism at once, and who talks to whom.

>>> from shardlab import labs
>>> run = labs.mesh(ranks=4)
>>> run.table()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardlab.checks import count, positive
from shardlab.labs.lab import RUN_OPTIONS, lab
from shardlab.labs.result import (
    Equality,
    LabRun,
    common,
    cores_words,
    equality_table,
    only,
    ranks_words,
)
from shardlab.labs.run import run
from shardlab.labs.sent import SENT_COLUMNS, Sent, reading_words
from shardlab.labs.table import Table
from shardlab.models.communication import layout_traffic
from shardlab.models.mesh import Mesh
from shardlab.models.mesh import mesh as mesh_model
from shardlab.units import format_bytes

WORKER = "shardlab.labs.mesh_worker:worker"

# The last one is fastest: neighbouring ranks share a layer.
AXES = ("data", "pipeline", "tensor")
# The model, shared with the worker: each degree that the lab allows divides these.
LAYERS = 4
HIDDEN = 192
HEADS = 12
SEQUENCE = 32
GLOBAL_BATCH = 24
MICRO_BATCHES = 2
FP32_BYTES = 4
WEIGHTS_PER_LAYER = 4

# The degrees of each axis that divide the model and the batch.
DEGREES = {"data": (1, 2, 3, 4), "pipeline": (1, 2), "tensor": (1, 2, 3, 4)}
# fp32 keeps 7 digits; losses and parameters are a few units large.
SAME = 1e-5

Layout = tuple[int, int, int]


def layouts(ranks: int) -> list[Layout]:
    """The (data, pipeline, tensor) degrees with that product that use as many axes as possible; may be none."""
    found = [
        (data, pipeline, tensor)
        for data in DEGREES["data"]
        for pipeline in DEGREES["pipeline"]
        for tensor in DEGREES["tensor"]
        if data * pipeline * tensor == ranks
    ]
    used = [sum(degree > 1 for degree in layout) for layout in found]
    return [layout for layout, axes in zip(found, used, strict=True) if axes == max(used)]


POSSIBLE_RANKS = tuple([ranks for ranks in range(1, 33) if layouts(ranks)])


def place_of(layout: Sequence[int], rank: int) -> tuple[int, ...]:
    """A rank's coordinate on each axis: the last axis is fastest, as digits of a number.

    Source: the order of ranks in ``torch.distributed.init_device_mesh``; tensor parallel innermost, so that its
    ranks are neighbours in a node: Narayanan et al. (arXiv 2104.04473), section 3.2.
    """
    return tuple(reversed(_model(layout).place(rank)))


def group_of(layout: Sequence[int], rank: int, axis: int) -> tuple[int, ...]:
    """The ranks that share a rank's coordinates on all axes but one: whom it talks to along that axis, and itself."""
    return _model(layout).group(rank, (AXES[axis],))


def _model(layout: Sequence[int]) -> Mesh:
    """The layout as the models have it, fastest axis first."""
    return mesh_model(tuple(reversed(tuple(zip(AXES, layout, strict=True)))))


def layout_words(layout: Sequence[int]) -> str:
    """``2 x 1 x 2``."""
    return " x ".join(map(str, layout))


@dataclass(frozen=True)
class GroupRow:
    """One rank on one mesh.

    Attributes:
        layout: (data, pipeline, tensor) degrees. rank: of the run.
        place: coordinates. groups: the ranks of its group on each axis. Both as torch's device mesh has them.
        predicted_place, predicted_groups: the same by the rule that the last axis is fastest.
    """

    layout: tuple[int, ...]
    rank: int
    place: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    predicted_place: tuple[int, ...]
    predicted_groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class EqualityRow(Equality):
    """Training on a mesh against one process on the same global batches.

    Attributes:
        layout: (data, pipeline, tensor) degrees.
        reduced_over: the axis whose group added up the gradients: ``"data"`` is right, any other is a mistake.
        loss_gap: largest absolute difference of a step's loss. parameter_gap: of any parameter, after the last step.
        last_loss: of the last step. alone_loss: of one process.
    """

    gaps: ClassVar[Mapping[str, str]] = {"loss_gap": "loss", "parameter_gap": "parameters"}

    layout: tuple[int, ...]
    reduced_over: str
    loss_gap: float
    parameter_gap: float
    last_loss: float
    alone_loss: float


@dataclass(frozen=True, kw_only=True)
class TrafficRow(Sent):
    """Bytes that each rank sends along one axis in one step.

    Attributes:
        layout: (data, pipeline, tensor) degrees.
        axis: one of :data:`AXES` (the others were silent), or ``"all"``.
    """

    layout: tuple[int, ...]
    axis: str


@dataclass(frozen=True, kw_only=True)
class MeshRun(LabRun):
    """A finished mesh lab.

    Attributes:
        parameters: of the whole model.
        groups, equality, traffic: the measurements, row by row.
    """

    lab: ClassVar[str] = "mesh"

    parameters: int
    groups: tuple[GroupRow, ...]
    equality: tuple[EqualityRow, ...]
    traffic: tuple[TrafficRow, ...]

    # ---- reading it ----

    @property
    def layouts(self) -> list[tuple[int, ...]]:
        """The layouts measured."""
        return [row.layout for row in self.traffic if row.axis == "all"]

    def traffic_row(self, layout: Sequence[int], axis: str) -> TrafficRow:
        """The row of :attr:`traffic` with these settings."""
        return only(self.traffic, "traffic", layout=tuple(layout), axis=axis)

    def trained(self, layout: Sequence[int], right: bool = True) -> EqualityRow:
        """The row of :attr:`equality` with the gradients added up over the right group, or over a wrong one."""
        rows = [row for row in self.equality if (row.reduced_over == "data") is right]
        return only(rows, "equality", layout=tuple(layout))

    def failed_checks(self) -> list[str]:
        """Sentences about what should have been equal and was not; empty if all is well."""
        failed = [
            f"{layout_words(row.layout)}: rank {row.rank} is at {row.place} with {row.groups}, not at "
            f"{row.predicted_place} with {row.predicted_groups}"
            for row in self.groups
            if (row.place, row.groups) != (row.predicted_place, row.predicted_groups)
        ]
        for trained in self.equality:
            if trained.reduced_over == "data":
                failed += trained.complaint(layout_words(trained.layout), SAME)
        for sent in self.traffic:
            failed += sent.complaint(f"{layout_words(sent.layout)}, {sent.axis}")
        return failed

    # ---- showing it ----

    def make_tables(self) -> dict[str, Callable[[], Table]]:
        """``"groups"``, ``"equality"``, ``"traffic"``, ``"mistake"``."""
        return {
            "groups": self._groups_table,
            "equality": self._equality_table,
            "traffic": self._traffic_table,
            "mistake": self._mistake_table,
        }

    def _groups_table(self) -> Table:
        rows = []
        for row in self.groups:
            pairs = zip(row.predicted_groups, row.groups, strict=True)
            cells = [" ".join(map(str, group)) for pair in pairs for group in pair]
            place = [", ".join(map(str, place)) for place in (row.predicted_place, row.place)]
            rows.append((layout_words(row.layout), str(row.rank), *place, *cells))
        heads = [f"{name}, {source}" for name in ("Place", *AXES) for source in ("predicted", "mesh")]
        return Table(
            caption="Who is with whom: each rank's place (data, pipeline, tensor) and its group along each axis",
            columns=("Data x pipeline x tensor", "Rank", *[head.capitalize() for head in heads]),
            rows=tuple(rows),
            notes=(
                "Predicted: a rank's number is (data · pipeline degree + pipeline) · tensor degree + tensor, so that "
                "neighbours share layers. Mesh: what init_device_mesh made.",
            ),
            label_columns=2,
        )

    def _equality_table(self) -> Table:
        return equality_table(
            f"Trained on the mesh against one process, {self.settings['steps']} steps: largest difference",
            ("Data x pipeline x tensor",),
            ("Loss", "Parameters"),
            [((layout_words(layout),), self.trained(layout)) for layout in self.layouts],
        )

    def _traffic_table(self) -> Table:
        rows = [(layout_words(row.layout), row.axis, *row.cells) for row in self.traffic]
        return Table(
            caption=f"Bytes that one rank sends per step along each axis; {self.parameters:,} parameters in fp32",
            columns=("Data x pipeline x tensor", "Axis", *SENT_COLUMNS),
            rows=tuple(rows),
            notes=(
                "Each axis was counted with the other two silent (what comes from them is zeros), then all together. "
                "A fixed global batch: more data ranks make smaller messages on the other axes.",
                reading_words(self.reading),
            ),
            label_columns=2,
        )

    def _mistake_table(self) -> Table:
        rows = []
        for layout in self.layouts:
            right, wrong = self.trained(layout), self.trained(layout, right=False)
            losses = [f"{loss:.4f}" for loss in (right.alone_loss, right.last_loss, wrong.last_loss)]
            gaps = [f"{gap:.1e}" for gap in (right.parameter_gap, wrong.parameter_gap)]
            rows.append((layout_words(layout), wrong.reduced_over, *losses, *gaps))
        return Table(
            caption=f"The gradients averaged over the wrong group, {self.settings['steps']} steps: nothing raises an error",
            columns=(
                "Data x pipeline x tensor",
                "Averaged over, by mistake",
                "Last loss, one process",
                "Last loss, right group",
                "Last loss, wrong group",
                "Parameters off, right group",
                "Parameters off, wrong group",
            ),
            rows=tuple(rows),
            label_columns=2,
        )

    def explanation(self) -> list[str]:
        """What the numbers say, in words, with the numbers."""
        if self.settings["ranks"] == 1:
            return ["With one rank there is nobody to talk to: run the lab with more ranks."]
        return [self._group_words(), self._traffic_words(), self._mistake_words(), self._rank_words()]

    def _group_words(self) -> str:
        ranks, layout = self.settings["ranks"], self.layouts[0]
        groups = only(self.groups, "groups", layout=layout, rank=0).groups
        told = [
            f"along {axis} with rank {' and '.join(map(str, group[1:]))}"
            for axis, group in zip(AXES, groups, strict=True)
            if len(group) > 1
        ]
        return (
            f"On {layout_words(layout)} rank 0 talks {', '.join(told)}. Of {ranks} ranks each is in one group of every axis, "
            "and no two of its groups share another rank: an axis of size 1 is there too, and sends nothing."
        )

    def _traffic_words(self) -> str:
        words = []
        for layout in self.layouts:
            parts = [
                f"{format_bytes(row.predicted)} along {row.axis}"
                for row in self.traffic
                if row.layout == layout and row.axis != "all" and row.predicted
            ]
            words.append(f"{layout_words(layout)}: {', '.join(parts)}")
        gaps = [row.gap for row in self.traffic if row.gap is not None]
        counted = f" The kernel counts at most {max(gaps):.2%} more, for headers." if gaps else ""
        return (
            f"One step sends, per rank, {'; '.join(words)}. What the axes send alone adds up to what they send together, and the "
            f"model of a whole layout gives each.{counted} The same ranks can send very different amounts, on different links."
        )

    def _mistake_words(self) -> str:
        worst = max(
            [self.trained(layout, right=False) for layout in self.layouts], key=lambda row: row.parameter_gap
        )
        right = self.trained(worst.layout)
        # A step's loss is taken before its update: one step alone shows none.
        loss = (
            f", and the last loss is {worst.last_loss:.3f} instead of {worst.alone_loss:.3f}"
            if self.settings["steps"] > 1
            else ""
        )
        return (
            f"Averaged over the {worst.reduced_over} group instead of the data group, {layout_words(worst.layout)} runs to the end "
            f"without an error: shapes fit, every rank calls the same collectives. Only the numbers tell: parameters are off by "
            f"{worst.parameter_gap:.1e} instead of {right.parameter_gap:.1e}{loss}. Compare a few steps with one process before "
            "a long run."
        )

    def _rank_words(self) -> str:
        used = sum(degree > 1 for degree in self.layouts[0])
        if used == len(AXES):
            return "All three axes are in use at once, and each sends what it sends alone."
        return (
            f"{ranks_words(self.settings['ranks'])} can't fill more axes than {used}. With ranks=8 the lab runs 2 x 2 x 2, all "
            f"three at once; it is not the default because eight processes on {cores_words(self.stamp.cores)} mostly wait for "
            "their turn."
        )


@lab(
    title="A mesh of data, pipeline and tensor parallelism: groups, bytes of each axis, a wrong group",
    seconds=20,
    needs="torch",
    options={
        "ranks": "Number of ranks: 4 for two axes at once, 8 for three.",
        "steps": "Training steps that are compared with one process.",
        **RUN_OPTIONS,
    },
    worker_file="mesh_worker.py",
    shown=("training_step", "layer"),
    result=MeshRun,
)
def mesh(
    ranks: int = 4,
    *,
    steps: int = 3,
    limit_s: float = 300.0,
    start: str = "auto",
    show: bool = True,
) -> MeshRun:
    """Train a small transformer on every mesh of ``ranks`` processes that uses as many axes as possible.

    (a) The groups of each rank, beside the rule for its number. (b) Losses and parameters against one process.
    (c) Bytes on the wire per rank and step along each axis, by the kernel, beside the model. (d) What happens when
    the gradients are averaged over the wrong group.

    Args:
        ranks: a product of 1 to 4 data, 1 or 2 pipeline and 1 to 4 tensor ranks.
        steps: training steps that are compared.
        limit_s: time limit of the whole lab, seconds.
        start: as in :func:`shardlab.labs.run.run`.
        show: show progress.

    Raises:
        ValueError: an argument is out of range.
        LabError: a rank failed or the limit was reached; what was ready is in its ``partial``.

    Without torch it says so and returns the run that was recorded for the book (``recorded`` is then True). With a
    GPU for each rank it uses NCCL, and the kernel then has no bytes to count; that path was not run for this book.
    """
    n_ranks = count("ranks", ranks)
    if n_ranks not in POSSIBLE_RANKS:
        raise ValueError(
            f"ranks must be one of {', '.join(map(str, POSSIBLE_RANKS))}, to be 1 to 4 data x 1 or 2 pipeline x 1 to 4 "
            f"tensor ranks, not {n_ranks}"
        )
    settings = {"ranks": n_ranks, "steps": count("steps", steps)}
    limit = positive("limit_s", limit_s, "seconds")
    params = {**settings, "layouts": layouts(n_ranks)}
    outcome = run(WORKER, n_ranks, params, limit_s=limit, start=start, show=show)
    return _evaluate(outcome.results[0], settings, outcome.elapsed_s)


# ---- from raw measurements to the result ----


def _evaluate(measured: dict[str, Any], settings: dict[str, Any], elapsed_s: float) -> MeshRun:
    return MeshRun(
        **common(measured, settings, elapsed_s),
        parameters=measured["parameters"],
        groups=tuple([_group_row(row) for row in measured["groups"]]),
        equality=tuple(
            [EqualityRow(**{**row, "layout": tuple(row["layout"])}) for row in measured["equality"]]
        ),
        traffic=tuple([_traffic_row(row, measured["parameters"]) for row in measured["traffic"]]),
    )


def _group_row(row: dict[str, Any]) -> GroupRow:
    layout, rank = tuple(row["layout"]), row["rank"]
    return GroupRow(
        layout=layout,
        rank=rank,
        place=tuple(row["place"]),
        groups=tuple([tuple(group) for group in row["groups"]]),
        predicted_place=place_of(layout, rank),
        predicted_groups=tuple([group_of(layout, rank, axis) for axis in range(len(AXES))]),
    )


def _traffic_row(row: dict[str, Any], parameters: int) -> TrafficRow:
    data, pipeline, tensor = row["layout"]
    model = dict(
        layout_traffic(
            parameters,
            LAYERS,
            SEQUENCE,
            GLOBAL_BATCH // data // MICRO_BATCHES,
            HIDDEN,
            HEADS,
            MICRO_BATCHES,
            data_parallel=data,
            tensor_parallel=tensor,
            pipeline_parallel=pipeline,
            schedule="gpipe",
            gradient_bytes=FP32_BYTES,
            element_bytes=FP32_BYTES,
        ).items
    )
    layers = LAYERS // pipeline
    # An all-reduce passes 2 (N-1) messages around its ring; a layer has two forward and two backward.
    messages = {
        "data": WEIGHTS_PER_LAYER * layers * 2 * (data - 1),
        "pipeline": MICRO_BATCHES * (pipeline - 1),
        "tensor": 4 * layers * MICRO_BATCHES * 2 * (tensor - 1),
    }
    axes = AXES if row["axis"] == "all" else (row["axis"],)
    predicted = sum(model[axis] for axis in axes)
    return TrafficRow(
        layout=(data, pipeline, tensor),
        axis=row["axis"],
        messages=sum(messages[axis] for axis in axes),
        predicted_bytes=(predicted,) * (data * pipeline * tensor),
        kernel_bytes=None if row["kernel"] is None else tuple(row["kernel"]),
    )

"""Split a small matrix product over ranks, by columns, by rows or both in turn, and watch what must be sent."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, stepper, toggle
from shardlab.models.collectives import chunk_sizes, ring_allgather_cost, ring_allreduce_sent_bytes

ELEMENT_BYTES = 2
LEAST_RANKS, MOST_RANKS = 2, 4
MOST_STEPS = 5

INPUT = [[1, 2, -1, 0], [0, 1, 1, 2], [2, -1, 0, 1]]
A = [
    [1, -1, 2, 0, 1, 2, -2, 1],
    [0, 2, -1, 1, -2, 1, 1, 0],
    [2, 1, 0, -1, 1, -1, 2, -2],
    [-1, 0, 1, 2, 0, -2, 1, 1],
]
B = [
    [1, 0, -1, 2],
    [0, 1, 2, -1],
    [2, -1, 0, 1],
    [-1, 2, 1, 0],
    [1, 1, -2, 0],
    [0, -2, 1, 1],
    [2, 0, 1, -1],
    [1, -1, 0, 2],
]
WIDE_GRADIENT = [[1, 0, -1, 2, 1, 0, 1, -1], [0, 1, 1, 0, -1, 2, 0, 1], [2, -1, 0, 1, 0, 1, -1, 0]]
GRADIENT = [[1, 0, 2, -1], [0, 1, -1, 1], [-1, 2, 0, 1]]

CUTS = (
    ("columns-rows", "A by columns, then B by rows"),
    ("rows-columns", "A by rows, then B by columns"),
    ("columns", "A alone, by columns"),
    ("rows", "A alone, by rows"),
)
_OTHER = {"columns": "rows", "rows": "columns"}


def transposed(grid: list[list[Any]]) -> list[list[Any]]:
    """Rows become columns."""
    return [[row[column] for row in grid] for column in range(len(grid[0]))]


def product(left: list[list[Any]], right: list[list[Any]]) -> list[list[Any]]:
    """The uncut matrix product."""
    grid = []
    for row in left:
        cells = []
        for column in range(len(right[0])):
            total = 0
            for inner, value in enumerate(row):
                total += value * right[inner][column]
            cells.append(total)
        grid.append(cells)
    return grid


class _Stage:
    """One matrix and the way it is cut; in the backward pass it is transposed, and so is the cut."""

    def __init__(self, name: str, weights: list[list[int]], cut: str, result: str) -> None:
        self.name = name
        self.weights = weights
        self.cut = cut
        self.result = result


class _State:
    """What is on the ranks after one step.

    Attributes:
        action: ``"start"``, ``"multiply"``, ``"relu"``, ``"sum"`` or ``"gather"``.
        name: of the values. stage: the matrix in use.
        held: one grid per rank, None where a rank holds no number.
        partial: whether the numbers are sums that other ranks must complete.
        whole: the grid that one rank alone would have.
        sent: bytes that one rank has sent so far. collectives: their names so far.
    """

    def __init__(self, action: str, name: str, stage: _Stage, held: list[list[list[Any]]]) -> None:
        self.action = action
        self.name = name
        self.stage = stage
        self.held = held
        self.partial = False
        self.whole: list[list[Any]] = []
        self.sent = 0.0
        self.collectives: list[str] = []


def parts(width: int, ranks: int) -> list[list[int]]:
    """The columns (or rows) of each rank: equal shares, the first ones larger where they can't be equal."""
    found, start = [], 0
    for size in chunk_sizes(width, ranks):
        found.append(list(range(start, start + size)))
        start += size
    return found


def _multiply(stage: _Stage, held: list[list[list[Any]]], ranks: int) -> list[list[list[Any]]]:
    """Every rank's product with its part of the matrix."""
    results = []
    for rank in range(ranks):
        if stage.cut == "columns":
            mine = parts(len(stage.weights[0]), ranks)[rank]
            full = product(held[rank], stage.weights)
            grid = [[row[c] if c in mine else None for c in range(len(row))] for row in full]
        else:
            mine = parts(len(stage.weights), ranks)[rank]
            inputs = [[row[c] for c in mine] for row in held[rank]]
            grid = product(inputs, [stage.weights[c] for c in mine])
        results.append(grid)
    return results


def _summed(held: list[list[list[Any]]]) -> list[list[Any]]:
    """What an all-reduce or an all-gather leaves on every rank: the sum of all that is there."""
    grid = []
    for row in range(len(held[0])):
        cells = []
        for column in range(len(held[0][0])):
            total = 0
            for mine in held:
                if mine[row][column] is not None:
                    total += mine[row][column]
            cells.append(total)
        grid.append(cells)
    return grid


def _relu(grid: list[list[Any]], mask: list[list[Any]] | None) -> list[list[Any]]:
    """ReLU of each number; with a mask (backward) the numbers where the mask is positive."""
    result = []
    for row, cells in enumerate(grid):
        line = []
        for column, value in enumerate(cells):
            source = value if mask is None else mask[row][column]
            line.append(None if value is None else value if source is not None and source > 0 else 0)
        result.append(line)
    return result


def _program(cut: str, backward: bool) -> tuple[list[list[int]], str, list[_Stage]]:
    """The input, its name, and the matrices in order."""
    single = cut in _OTHER
    first, second = (cut, "") if single else cut.split("-")
    if not backward:
        stages = [_Stage("A", A, first, "Y" if single else "X·A")]
        if not single:
            stages.append(_Stage("B", B, second, "Z"))
        return INPUT, "X", stages
    last = _Stage("Aᵀ", transposed(A), _OTHER[first], "dX")
    if single:
        return WIDE_GRADIENT, "dY", [last]
    return GRADIENT, "dZ", [_Stage("Bᵀ", transposed(B), _OTHER[second], "dZ·Bᵀ"), last]


def play(cut: str, backward: bool, ranks: int, early: bool) -> list[_State]:
    """All steps of one pass, from the input to a result that every rank holds whole.

    ``early`` applies ReLU before the all-reduce (forward, rows first): the mistake that the words explain.
    """
    start, name, stages = _program(cut, backward)
    mask = product(INPUT, A) if backward else None
    states = [_State("start", name, stages[0], [start for _ in range(ranks)])]
    states[0].whole = start

    def add(
        action: str, title: str, stage: _Stage, held: list[list[list[Any]]], whole: list[list[Any]]
    ) -> None:
        state = _State(action, title, stage, held)
        before = states[-1]
        state.whole, state.partial = whole, before.partial
        state.sent, state.collectives = before.sent, list(before.collectives)
        cells = len(whole) * len(whole[0]) * ELEMENT_BYTES
        if action == "multiply":
            state.partial = stage.cut == "rows"
        elif action == "sum":
            state.partial = False
            state.sent += ring_allreduce_sent_bytes(cells, ranks)
            state.collectives.append("all-reduce")
        elif action == "gather":
            state.sent += ring_allgather_cost(cells, ranks).sent_bytes
            state.collectives.append("all-gather")
        states.append(state)

    for index, stage in enumerate(stages):
        title, last = stage.result, index == len(stages) - 1
        whole = product(states[-1].whole, stage.weights)
        add("multiply", title, stage, _multiply(stage, states[-1].held, ranks), whole)
        actions = _after(stage, last, early)
        for action in actions:
            if action == "relu":
                title = "dH" if backward else "H"
                whole = _relu(whole, mask)
                held = [_relu(grid, mask) for grid in states[-1].held]
            else:
                held = [_summed(states[-1].held) for _ in range(ranks)]
            add(action, title, stage, held, whole)
    return states


def _after(stage: _Stage, last: bool, early: bool) -> list[str]:
    """What follows a product: a sum for partial sums, a gather for the last one's columns, ReLU between two."""
    if last:
        return ["sum"] if stage.cut == "rows" else ["gather"]
    if stage.cut == "columns":
        return ["relu"]
    return ["relu", "sum"] if early else ["sum", "relu"]


def picture(step: int, cut: str, backward: bool, ranks: int, rank: int, early: bool) -> dict[str, Any]:
    """The matrix in use, what one rank holds, and what it should hold, after ``step`` steps."""
    can_spoil = cut == "rows-columns" and not backward
    wrong = early and can_spoil
    states = play(cut, backward, ranks, wrong)
    position, mine = min(step, len(states) - 1), min(rank, ranks - 1)
    state = states[position]
    return chart.chart(
        panels=[
            _weights_panel(state.stage, ranks, mine),
            _held_panel(state, states[position - 1] if position else None, mine),
            _whole_panel(state, mine),
        ],
        words=_sentences(states, position, ranks, mine, wrong),
        readouts=_readouts(states, position, ranks, mine),
        bounds={
            "step": {"most": len(states) - 1},
            "rank": {"most": ranks - 1},
            "early": {"enabled": can_spoil},
        },
    )


def _number(value: Any) -> str:
    return "" if value is None else str(value).replace("-", "−")


def _weights_panel(stage: _Stage, ranks: int, rank: int) -> dict[str, Any]:
    rows, columns = len(stage.weights), len(stage.weights[0])
    by_columns = stage.cut == "columns"
    mine = parts(columns if by_columns else rows, ranks)[rank]
    levels = [[1.0 if (c if by_columns else r) in mine else 0.0 for c in range(columns)] for r in range(rows)]
    return chart.matrix(
        title=f"{stage.name}, by {stage.cut}: rank {rank}'s part",
        columns=[str(c) for c in range(columns)],
        rows=[str(r) for r in range(rows)],
        column_label="output",
        row_label="input",
        texts=[[_number(value) for value in row] for row in stage.weights],
        levels=levels,
        role="memory-parameters",
        alt=f"Matrix {stage.name}, {rows} by {columns}, cut by {stage.cut}: rank {rank} of {ranks} holds "
        f"{words.plural(len(mine), stage.cut[:-1])} of it.",
    )


def _right(state: _State, rank: int) -> list[list[bool]]:
    """Which cells the rank has, and has right. A partial sum may equal the whole by chance: it doesn't count."""
    rows, columns = range(len(state.whole)), range(len(state.whole[0]))
    held = state.held[rank]
    return [[not state.partial and held[r][c] == state.whole[r][c] for c in columns] for r in rows]


def _held_panel(state: _State, before: _State | None, rank: int) -> dict[str, Any]:
    held = state.held[rank]
    new = []
    if before is not None and state.action in ("sum", "gather"):
        for r, row in enumerate(held):
            for c, value in enumerate(row):
                if value != before.held[rank][r][c]:
                    new.append((r, c, "to"))
    filled = 0.35 if state.partial else 1.0
    return chart.matrix(
        title=f"{state.name} on rank {rank}" + (": partial sums" if state.partial else ""),
        columns=[str(c) for c in range(len(held[0]))],
        rows=[str(r) for r in range(len(held))],
        column_label="column",
        row_label="token",
        texts=[[_number(value) for value in row] for row in held],
        levels=[[0.0 if value is None else filled for value in row] for row in held],
        role="compute",
        marks=new,
        alt=f"{state.name} on rank {rank}: {_count_held(held)} of {len(held) * len(held[0])} cells are here"
        + (", as partial sums." if state.partial else "."),
    )


def _count_held(held: list[list[Any]]) -> int:
    return len([1 for row in held for value in row if value is not None])


def _whole_panel(state: _State, rank: int) -> dict[str, Any]:
    whole, right = state.whole, _right(state, rank)
    return chart.matrix(
        title=f"{state.name} without a cut",
        columns=[str(c) for c in range(len(whole[0]))],
        rows=[str(r) for r in range(len(whole))],
        column_label="filled: the rank has it",
        row_label="token",
        texts=[[_number(value) for value in row] for row in whole],
        levels=[[1.0 if cell else 0.0 for cell in row] for row in right],
        role="compute",
        alt=f"{state.name} as one rank alone would have it; rank {rank} holds {_count_right(right)} of its cells.",
    )


def _count_right(right: list[list[bool]]) -> int:
    return len([1 for row in right for cell in row if cell])


def _readouts(states: list[_State], position: int, ranks: int, rank: int) -> list[dict[str, Any]]:
    state = states[position]
    right = _right(state, rank)
    stage = state.stage
    total = len(stage.weights) * len(stage.weights[0])
    by_columns = stage.cut == "columns"
    mine = len(parts(len(stage.weights[0]) if by_columns else len(stage.weights), ranks)[rank])
    held = mine * (len(stage.weights) if by_columns else len(stage.weights[0]))
    return [
        chart.readout("step", f"{position} of {len(states) - 1}", _ACTIONS[state.action]),
        chart.readout(f"{stage.name} on rank {rank}", f"{held} of {total}", "numbers held", "memory-text"),
        chart.readout(
            "sent by each rank",
            words.n_bytes(state.sent),
            ", ".join(state.collectives) or "nothing yet",
            "communication-text",
        ),
        chart.readout(
            "right cells",
            f"{_count_right(right)} of {len(right) * len(right[0])}",
            f"{state.name}, rank {rank}",
            "compute-text",
        ),
    ]


_ACTIONS = {
    "start": "before the first step",
    "multiply": "compute",
    "relu": "compute",
    "sum": "all-reduce",
    "gather": "all-gather",
}


def _sentences(states: list[_State], position: int, ranks: int, rank: int, wrong: bool) -> list[str]:
    state = states[position]
    texts = [_what_happened(states, position, ranks, rank, wrong)]
    last = states[-1]
    if position == len(states) - 1:
        count = len(last.collectives)
        texts.append(
            f"In all: {words.plural(count, 'collective')} ({', '.join(last.collectives)}), "
            f"{words.n_bytes(last.sent)} sent by each rank at {ELEMENT_BYTES} bytes a number; "
            f"each rank did about 1/{ranks} of the multiplications."
        )
        if wrong:
            texts.append("No error is raised: only a comparison with the uncut product tells.")
    elif state.sent == 0:
        texts.append(
            f"Drawn is rank {rank}. Nothing has been sent yet; the whole pass will send {words.n_bytes(last.sent)} a rank."
        )
    else:
        texts.append(f"Sent so far {words.n_bytes(state.sent)} of {words.n_bytes(last.sent)} a rank.")
    return texts


def _what_happened(states: list[_State], position: int, ranks: int, rank: int, wrong: bool) -> str:
    state, stage = states[position], states[position].stage
    if state.action == "start":
        cuts = f"{stage.name} is cut by {stage.cut} over {words.plural(ranks, 'rank')}"
        take = "" if stage.cut == "columns" else f", and of {state.name} it needs the columns that meet them"
        return f"Every rank holds {state.name} whole; {cuts}. A rank keeps its own {stage.cut} only{take}."
    if state.action == "multiply":
        if stage.cut == "columns":
            made = "made of wrong numbers" if wrong else "right numbers, not all of them"
            return (
                f"Each rank multiplied by its columns of {stage.name} and has finished columns of {state.name}: "
                f"{made}. Nothing was sent."
            )
        everybody = "both ranks" if ranks == 2 else f"all {ranks} ranks"
        return (
            f"Each rank multiplied its columns by its rows of {stage.name}: it has every cell of {state.name}, "
            f"each a partial sum, right only when {everybody} are added up. Nothing was sent."
        )
    if state.action == "relu":
        if wrong:
            return (
                "ReLU was applied to partial sums, and that is wrong: the ReLU of a sum is not the sum of "
                "the ReLUs. The all-reduce that follows can't repair it."
            )
        what = "The mask of ReLU" if state.name == "dH" else "ReLU"
        where = "its finished columns" if stage.cut == "columns" else "the finished sums"
        return f"{what} works cell by cell, so each rank applies it to {where}. Nothing was sent."
    if state.action == "sum":
        right = _right(state, rank)
        total = len(right) * len(right[0])
        if _count_right(right) < total:
            return (
                f"The all-reduce added up what ReLU had spoilt: {total - _count_right(right)} of {total} cells of "
                f"{state.name} are wrong, on every rank."
            )
        return f"An all-reduce added the partial sums: every rank holds {state.name} whole."
    note = " The numbers are wrong all the same." if wrong else ""
    return f"An all-gather collected the columns: every rank holds {state.name} whole.{note}"


EXPERIMENT = Experiment(
    name="split-a-matmul",
    title="Split a matrix product",
    question="By columns or by rows: what does a rank hold after each step, and when must the ranks talk?",
    controls=(
        stepper("step", "Step", MOST_STEPS),
        choice("cut", "How to cut", CUTS, "columns-rows"),
        slider("ranks", "Ranks t", tuple(range(LEAST_RANKS, MOST_RANKS + 1)), 2, whole=True),
        slider("rank", "Look at rank", tuple(range(MOST_RANKS)), 0, whole=True),
        toggle("backward", "Backward pass", False),
        toggle("early", "ReLU before the sum", False),
    ),
    presets=(
        Preset(
            name="megatron",
            label="An MLP, cut well",
            values={"cut": "columns-rows", "ranks": 2, "step": 0},
            source="Columns, then rows: the MLP of Megatron-LM (arXiv 1909.08053, section 3), with 4 inputs and 8 "
            "inner columns; a real one has thousands.",
        ),
        Preset(
            name="backward",
            label="Its backward pass",
            values={"cut": "columns-rows", "ranks": 2, "backward": True, "step": 0},
            source="The same cut for the input's gradient: transposed, columns become rows (arXiv 1909.08053, section 3).",
        ),
        Preset(
            name="other-order",
            label="The other order",
            values={"cut": "rows-columns", "ranks": 2, "step": 5},
            source="Rows, then columns: right, and it must sum the wide tensor in the middle.",
        ),
        Preset(
            name="spoilt",
            label="ReLU too early",
            values={"cut": "rows-columns", "ranks": 2, "early": True, "step": 3},
            source="A non-linear function of partial sums (arXiv 1909.08053, section 3, on why the first cut is by columns).",
        ),
        Preset(
            name="rows",
            label="One matrix, by rows",
            values={"cut": "rows", "ranks": 4, "step": 1},
            source="The smallest case of partial sums: 4 ranks hold one row each.",
        ),
    ),
    picture=picture,
)

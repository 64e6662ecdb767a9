"""Assignment 05: cut a layer."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
n = numbers
tokens = n.sequence * n.micro_batch
weight_bytes = 24 * n.hidden * n.hidden / n.n_ranks
sent_bytes = 16 * tokens * n.hidden * (1 - 1 / n.n_ranks)
kept_bytes = 10 * tokens * n.hidden + 24 * tokens * n.hidden / n.n_ranks
kept_sequence_bytes = 34 * tokens * n.hidden / n.n_ranks
ratio = 2 * n.flops_per_s * (n.n_ranks - 1) / (9 * n.bandwidth * (n.hidden + n.sequence / 6))
"""

OUTPUTS = """
def by_outputs(weight, rank, n):
    size, left = divmod(len(weight), n)
    if left:
        raise ValueError("n must divide the outputs")
    return weight[rank * size:(rank + 1) * size].clone()
"""

INPUTS = """
def by_inputs(weight, rank, n):
    size, left = divmod(weight.shape[1], n)
    if left:
        raise ValueError("n must divide the inputs")
    return weight[:, rank * size:(rank + 1) * size].contiguous().clone()
"""

GATE_AND_UP = """
def gate_and_up(fused, rank, n):
    half = len(fused) // 2
    gate, up = by_outputs(fused[:half], rank, n), by_outputs(fused[half:], rank, n)
    return torch.cat([gate, up])
"""

HEADS = """
def by_heads(weight, n_heads, rank, n):
    if n_heads % n == 0:
        return by_outputs(weight, rank, n)
    if n % n_heads:
        raise ValueError("heads and ranks don't divide")
    return by_outputs(weight, rank // (n // n_heads), n_heads)
"""

COLUMNS = """
def column_forward(x, weight, bias):
    y = torch.einsum("...i,oi->...o", x, weight)
    if bias is not None:
        y = y + bias
    return y


def column_backward(x, weight, grad):
    grad_x = torch.einsum("...o,oi->...i", grad, weight).contiguous()
    dist.all_reduce(grad_x)
    return grad_x, torch.einsum("...o,...i->oi", grad, x), torch.einsum("...o->o", grad)
"""

ROWS = """
def row_forward(x, weight, bias):
    y = torch.einsum("...i,oi->...o", x, weight).contiguous()
    dist.all_reduce(y)
    if bias is not None:
        y = y + bias
    return y


def row_backward(x, weight, grad):
    grad_x = torch.einsum("...o,oi->...i", grad, weight)
    return grad_x, torch.einsum("...o,...i->oi", grad, x), torch.einsum("...o->o", grad)
"""

FORWARD = """
def mlp_forward(x, part):
    wide = column_forward(x, part["gate_up"], None)
    f = wide.shape[-1] // 2
    gate, up = wide[..., :f], wide[..., f:]
    y = row_forward(silu(gate) * up, part["down"], None)
    return y, {"x": x, "gate": gate, "up": up}
"""

BACKWARD = """
def mlp_backward(grad, part, saved):
    gate, up = saved["gate"], saved["up"]
    inner, down, _ = row_backward(silu(gate) * up, part["down"], grad)
    wide = torch.cat([inner * up * silu_slope(gate), inner * silu(gate)], -1)
    grad_x, gate_up, _ = column_backward(saved["x"], part["gate_up"], wide)
    return grad_x, {"down": down, "gate_up": gate_up}
"""

EXPLAINED = (
    "grad_x is off and y is right. Rows first add up the wide tensor. The bytes sent hardly change from 8 on."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": OUTPUTS + INPUTS + GATE_AND_UP + HEADS,
    "task-3-code": COLUMNS + ROWS,
    "task-4-code": FORWARD + BACKWARD,
    "task-5-answer": EXPLAINED,
}
FULL = (5, 6, 8, 6, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Takes the forward pass for all of it, and expects activations to go to 1/t without sequence parallelism.
    "all_of_it_goes_to_1_over_t": Submission(
        changed(
            task_1_answer=BY_HAND.replace("16 * tokens", "8 * tokens").replace(
                "kept_bytes = 10 * tokens * n.hidden + 24 *", "kept_bytes = 34 *"
            )
        ),
        (3, 6, 8, 6, 0),
        (
            "that is the forward pass or the backward pass; the layer has both",
            "norms, residuals and the blocks' inputs stay whole",
        ),
    ),
    # Takes the papers' columns for the columns of PyTorch's weight, which is stored the other way round.
    "columns_of_the_weight": Submission(
        changed(
            task_2_code=OUTPUTS.replace("by_outputs", "along_rows")
            + INPUTS.replace("by_inputs", "along_columns")
            + "\ndef by_outputs(weight, rank, n):\n"
            "    return along_columns(weight, rank, n) if weight.dim() > 1 else along_rows(weight, rank, n)\n"
            "\ndef by_inputs(weight, rank, n):\n    return along_rows(weight, rank, n)\n"
            + GATE_AND_UP.replace("by_outputs", "along_rows")
            + HEADS.replace("by_outputs", "along_rows")
        ),
        (5, 4, 8, 6, 0),
        ("that is the part along the other dim",),
    ),
    # Cuts the fused matrix in one go: rank 0 has nothing but gate, the last rank nothing but up.
    "cuts_the_fused_matrix_whole": Submission(
        changed(
            task_2_code=OUTPUTS
            + INPUTS
            + "\ndef gate_and_up(fused, rank, n):\n    return by_outputs(fused, rank, n)\n"
            + HEADS
        ),
        (5, 5, 8, 6, 0),
        ("a rank must have its part of the gate and the same part of up",),
    ),
    # Cuts heads where there are fewer than ranks, and hands out views.
    "cuts_heads_and_keeps_views": Submission(
        changed(
            task_2_code=OUTPUTS.replace(".clone()", "")
            + INPUTS
            + GATE_AND_UP
            + "\ndef by_heads(weight, n_heads, rank, n):\n    return by_outputs(weight, rank, n)\n"
        ),
        (5, 4, 8, 6, 0),
        (
            "that is a part of a head: heads stay whole, and several ranks get a copy of the same one",
            "the part of 144 bytes is a view and keeps all 576 bytes alive",
        ),
    ),
    # Forgets the sum in the backward pass: outputs are right, and every layer below gets a part of its gradient.
    "no_sum_backward": Submission(
        changed(task_3_code=(COLUMNS + ROWS).replace("    dist.all_reduce(grad_x)\n", "")),
        (5, 6, 4, 6, 0),
        (
            "grad_x is this rank's part of a sum: each rank knows only its own outputs",
            "it takes one all-reduce, and no collective at all was called",
        ),
    ),
    # Adds the bias before the sum over the ranks: it comes out t times.
    "bias_on_every_rank": Submission(
        changed(
            task_3_code=COLUMNS
            + ROWS.replace(
                "    dist.all_reduce(y)\n    if bias is not None:\n        y = y + bias\n",
                "    if bias is not None:\n        y = y + bias\n    dist.all_reduce(y)\n",
            )
        ),
        (5, 6, 6, 6, 0),
        ("the output has the bias 3 times: add it after the all-reduce",),
    ),
    # Adds up everything in sight: the row-parallel linear's gradients are whole already.
    "sums_what_is_whole": Submission(
        changed(
            task_3_code=COLUMNS
            + ROWS.replace(
                'return grad_x, torch.einsum("...o,...i->oi", grad, x), torch.einsum("...o->o", grad)',
                'bias = torch.einsum("...o->o", grad)\n    dist.all_reduce(bias)\n'
                '    return grad_x, torch.einsum("...o,...i->oi", grad, x), bias',
            )
        ),
        (5, 6, 5, 6, 0),
        (
            "grad_bias is 3 times too large: every rank knows the whole gradient already",
            "it takes no collective, and all-reduce of 9 numbers was called",
        ),
    ),
    # Knows matrices only: with a batch in front of the tokens it stops.
    "two_dims_only": Submission(
        changed(
            task_3_code=(COLUMNS + ROWS)
            .replace('torch.einsum("...o,...i->oi", grad, x)', "grad.t() @ x")
            .replace('torch.einsum("...o->o", grad)', "grad.sum(0)")
        ),
        (5, 6, 6, 6, 0),
        ("2 x 4 tokens: column_backward: rank", "t() expects a tensor with <= 2 dimensions"),
    ),
    # Goes back through gate and up one after the other: right, with two all-reduces.
    "two_all_reduces_backward": Submission(
        changed(
            task_4_code=FORWARD
            + """
def mlp_backward(grad, part, saved):
    x, gate, up = saved["x"], saved["gate"], saved["up"]
    inner, down, _ = row_backward(silu(gate) * up, part["down"], grad)
    G, U = part["gate_up"].chunk(2)
    x_gate, gate_grad, _ = column_backward(x, G, inner * up * silu_slope(gate))
    x_up, up_grad, _ = column_backward(x, U, inner * silu(gate))
    return x_gate + x_up, {"gate_up": torch.cat([gate_grad, up_grad]), "down": down}
"""
        ),
        (5, 6, 8, 5, 0),
        ("it takes one all-reduce, and all-reduce of 20 numbers, all-reduce of 20 numbers was called",),
    ),
    # Gates with the wrong half, and goes back through its own mistake.
    "gates_with_up": Submission(
        changed(
            task_4_code=FORWARD.replace(
                "gate, up = wide[..., :f], wide[..., f:]", "up, gate = wide[..., :f], wide[..., f:]"
            )
            + BACKWARD.replace(
                "torch.cat([inner * up * silu_slope(gate), inner * silu(gate)], -1)",
                "torch.cat([inner * silu(gate), inner * up * silu_slope(gate)], -1)",
            )
        ),
        (5, 6, 8, 2, 0),
        ("the output has gate and up the wrong way round: the first half of the rows is the gate",),
    ),
    # Leaves out the slope of silu.
    "forgets_the_slope": Submission(
        changed(task_4_code=FORWARD + BACKWARD.replace(" * silu_slope(gate)", "")),
        (5, 6, 8, 3, 0),
        ("grad_x is off by",),
    ),
}

ASSIGNMENT = Assignment(
    name="05_tensor_parallel",
    notebook="tensor_parallel.ipynb",
    chapter="05_tensor_parallel.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "weight_bytes has no answer yet",
        "task-2-check": "NotImplementedError: by_outputs is not written yet",
        "task-3-check": "NotImplementedError: column_forward is not written yet",
        "task-4-check": "NotImplementedError: mlp_forward is not written yet",
    },
    marks_by_hand=5,
    needs_torch=True,
)

"""Assignment 01: the budget of a training step."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

BY_HAND = """
bytes_each = {"mixed-adam-16": 16, "megatron-18": 18, "deepspeed-20": 20, "mixed-moment-12": 12, "bf16-adam-8": 8}
state_bytes = numbers.n_params * bytes_each[numbers.recipe]
tokens = numbers.sequence * numbers.micro_batch
score_bytes = 5 * numbers.heads * numbers.sequence * tokens
activation_bytes = numbers.layers * (34 * tokens * numbers.hidden + score_bytes)
step_flop = 6 * numbers.n_params * numbers.batch_tokens
per_token = 2 * 2 * numbers.sequence * numbers.hidden * numbers.layers
attention_flop = 3 * per_token * numbers.batch_tokens
run_s = step_flop * numbers.n_steps / numbers.peak_flops / numbers.mfu / numbers.n_gpus
"""

STATE = """
def state_bytes(n_params, recipe, n_frozen=0):
    found = {copy: width * (n_params - n_frozen) for copy, width in recipe.items()}
    found["weights"] = recipe["weights"] * n_params
    return found
"""

COUNT = """
def count_parameters(config):
    if config["model_type"] == "gpt2":
        h, layers = config["n_embd"], config["n_layer"]
        total = layers * (12 * h * h + 13 * h)
        return total + h * (config["vocab_size"] + config["n_positions"] + 2)
    h, f = config["hidden_size"], config["intermediate_size"]
    d = config.get("head_dim", h // config["num_attention_heads"])
    attention = h * d * 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    total = config["num_hidden_layers"] * (attention + 3 * h * f + 2 * h) + h
    total += config["vocab_size"] * h
    if not config["tie_word_embeddings"]:
        total += config["vocab_size"] * h
    return total
"""

WHAT = """
def compute_s(run, n_gpus):
    return 6 * run.n_params * (run.batch_tokens / n_gpus) / run.peak_flops / run.mfu


def ring_s(run, n_gpus):
    gradients = run.n_params * run.recipe["gradients"]
    return 2 * gradients * (n_gpus - 1) / n_gpus / run.bandwidth


def held_bytes(run, n_gpus):
    held = run.activation_bytes
    for copy, width in run.recipe.items():
        held += run.n_params * width / (1 if copy in ("weights", "gradients") else n_gpus)
    return held


def step_time_s(run, n_gpus):
    return compute_s(run, n_gpus) + ring_s(run, n_gpus)


def what_runs_out(run, n_gpus):
    out = []
    if held_bytes(run, n_gpus) > run.memory_bytes:
        out.append("memory")
    if step_time_s(run, n_gpus) * run.n_steps > run.deadline_s:
        out.append("time")
    if ring_s(run, n_gpus) > compute_s(run, n_gpus):
        out.append("bandwidth")
    return out
"""

SMALLEST = """
def smallest_gpus(run):
    n_gpus = 1
    while n_gpus <= run.batch_sequences:
        if what_runs_out(run, n_gpus) == []:
            return n_gpus
        n_gpus += 1
"""

EXPLAINED = "Time decides for the long run and memory for the short one. GPT-3 keeps all weights on each GPU."

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-code": STATE,
    "task-3-code": COUNT,
    "task-4-code": WHAT,
    "task-5-code": SMALLEST,
    "task-6-answer": EXPLAINED,
}
FULL = (5, 4, 6, 6, 4, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Takes the weights for the whole state, and leaves the backward pass out of both counts of FLOP and of the time.
    "weights_and_forward_pass_only": Submission(
        changed(
            task_1_answer=BY_HAND.replace("bytes_each[numbers.recipe]", "2")
            .replace("step_flop = 6", "step_flop = 2")
            .replace("attention_flop = 3 *", "attention_flop =")
        ),
        (1, 4, 6, 6, 4, 0),
        ("those are the weights alone", "that is the forward pass; the backward pass does two products"),
    ),
    # Reckons with the peak of the data sheet, by hand and in the code; the deadline is judged with a working step time.
    "peak_for_mfu": Submission(
        changed(
            task_1_answer=BY_HAND.replace(" / numbers.mfu", ""),
            task_4_code=WHAT.replace(" / run.mfu", ""),
        ),
        (4, 4, 6, 2, 4, 0),
        ("that is at the peak", "the GPU computes at the MFU's share of its peak"),
    ),
    # Leaves the frozen parameters out altogether, their weights too.
    "frozen_weights_for_free": Submission(
        changed(
            task_2_code=STATE.replace(
                'recipe["weights"] * n_params', 'recipe["weights"] * (n_params - n_frozen)'
            )
        ),
        (5, 2, 6, 6, 4, 0),
        ("frozen weights are still needed in both passes",),
    ),
    # Gives frozen parameters gradients and optimizer state.
    "frozen_as_if_trained": Submission(
        changed(task_2_code=STATE.replace("(n_params - n_frozen)", "n_params")),
        (5, 2, 6, 6, 4, 0),
        ("what never changes has no gradients",),
    ),
    # Gives every query head a key and a value head of its own.
    "ignores_grouped_queries": Submission(
        changed(task_3_code=COUNT.replace("num_key_value_heads", "num_attention_heads")),
        (5, 4, 4, 6, 4, 0),
        ("the key and value projections have only num_key_value_heads heads",),
    ),
    # Forgets the gate of the MLP, and the biases of GPT-2.
    "no_gate_and_no_bias": Submission(
        changed(task_3_code=COUNT.replace("3 * h * f", "2 * h * f").replace("13 * h", "4 * h")),
        (5, 4, 0, 6, 4, 0),
        (
            "a gated MLP has three matrices: gate, up, down",
            "every matrix of a GPT-2 layer has a bias, as wide as its output",
        ),
    ),
    # Counts the output head of GPT-2, and of a tied Llama, as a second matrix.
    "ties_nothing": Submission(
        changed(
            task_3_code=COUNT.replace(
                'h * (config["vocab_size"] +', 'h * (2 * config["vocab_size"] +'
            ).replace('if not config["tie_word_embeddings"]', "if True")
        ),
        (5, 4, 3, 6, 4, 0),
        ("the output head is the same matrix as the embedding",),
    ),
    # Shares weights and gradients out too, as only ZeRO-3 does.
    "shards_everything": Submission(
        changed(task_4_code=WHAT.replace('(1 if copy in ("weights", "gradients") else n_gpus)', "n_gpus")),
        (5, 4, 6, 4, 4, 0),
        ("Weights and gradients are whole on each GPU",),
    ),
    # Compares the state alone with the memory.
    "forgets_activations": Submission(
        changed(task_4_code=WHAT.replace("held = run.activation_bytes", "held = 0")),
        (5, 4, 6, 4, 4, 0),
        ("a sequence's activations come on top",),
    ),
    # Counts one phase of the all-reduce.
    "one_phase": Submission(
        changed(task_4_code=WHAT.replace("return 2 * gradients", "return gradients")),
        (5, 4, 6, 2, 4, 0),
        ("an all-reduce has two phases",),
    ),
    # Takes the port's bytes for bits.
    "bytes_for_bits": Submission(
        changed(task_4_code=WHAT.replace("/ run.bandwidth", "/ (run.bandwidth / 8)")),
        (5, 4, 6, 2, 4, 0),
        ("run.bandwidth is in bytes per second, not in bits",),
    ),
    # Doubles the number until it is enough: right where there is none, too many elsewhere.
    "doubles_until_it_fits": Submission(
        changed(task_5_code=SMALLEST.replace("n_gpus += 1", "n_gpus *= 2")),
        (5, 4, 6, 6, 1, 0),
        ("with 511 GPUs nothing runs out either",),
    ),
    # Stops at the first number that holds the state, whatever time and bandwidth say.
    "asks_about_memory_only": Submission(
        changed(
            task_5_code=SMALLEST.replace(
                "what_runs_out(run, n_gpus) == []", '"memory" not in what_runs_out(run, n_gpus)'
            )
        ),
        (5, 4, 6, 6, 2, 0),
        ("but with so many GPUs time runs out",),
    ),
    # Goes on for ever where no number will do.
    "searches_for_ever": Submission(
        changed(
            task_5_code="""
def smallest_gpus(run):
    n_gpus = 1
    while what_runs_out(run, n_gpus):
        n_gpus += 1
    return n_gpus
"""
        ),
        (5, 4, 6, 6, 2, 0),
        ("where does the search stop?",),
    ),
}

ASSIGNMENT = Assignment(
    name="01_step_budget",
    notebook="step_budget.ipynb",
    chapter="01_why_distribute.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "state_bytes has no answer yet",
        "task-2-check": "NotImplementedError: state_bytes is not written yet",
        "task-3-check": "NotImplementedError: count_parameters is not written yet",
        "task-4-check": "NotImplementedError: step_time_s is not written yet",
        "task-5-check": "NotImplementedError: smallest_gpus is not written yet",
    },
    marks_by_hand=5,
)

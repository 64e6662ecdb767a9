"""Assignment 01: the numbers that are drawn, what known slips are told, and the runs that are planned."""

from __future__ import annotations

from typing import Any

import pytest
from submissions.step import COUNT, SMALLEST, STATE, WHAT

from shardlab.classroom import step_checks
from shardlab.models import memory
from shardlab.transformer import gpt, model_flops, parameters

CLASS = [f"s{number:03}" for number in range(300)]
STUDENT: dict[str, Any] = {}
exec(STATE + COUNT + WHAT + SMALLEST, STUDENT)
RUNS = [*step_checks.runs().values(), *step_checks.more_runs()]

LLAMA = {
    "name": "Llama 3 8B",
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


# ---- by hand ----


def test_the_drawn_numbers_of_a_class_are_plausible():
    drawn = [step_checks.by_hand_numbers(student) for student in CLASS]
    for numbers in drawn:
        exact = parameters(gpt(numbers.layers, numbers.hidden, numbers.heads))
        assert abs(numbers.n_params / exact - 1) < 0.005
        assert 1e9 < numbers.key("activation_bytes") < 1e13
        assert 0.02 < numbers.key("attention_flop") / numbers.key("step_flop") < 0.3
        # From days to years.
        assert 0.1 < numbers.key("run_s") / step_checks.DAY_S < 3000


def test_the_keys_are_the_chapters_formulas():
    for student in CLASS[:50]:
        n = step_checks.by_hand_numbers(student)
        s, b, h, a = n.sequence, n.micro_batch, n.hidden, n.heads
        assert n.key("activation_bytes") == pytest.approx(n.layers * s * b * h * (34 + 5 * a * s / h))
        assert n.key("step_flop") == 6 * n.n_params * n.batch_tokens
        # The exact count has the scores; without them it is six for each weight that a product uses.
        model = gpt(n.layers, h, a)
        products = n.layers * 12 * h * h + h * model.vocabulary
        exact = model_flops(model, s, batch=1) / s * n.batch_tokens
        assert n.key("attention_flop") == pytest.approx(exact - 6 * products * n.batch_tokens, rel=1e-9)
        rate = n.n_gpus * n.mfu * n.peak_flops
        assert n.key("run_s") == pytest.approx(n.n_steps * n.key("step_flop") / rate)


def test_the_widths_in_words_are_those_of_the_recipe():
    widths = {"bf16": 2, "fp32": 4}
    for name, words in step_checks._RECIPE_WORDS.items():
        total = 0
        for part in words.replace(
            "everything in bf16: weights, gradients, two", "bf16 weights and gradients, two bf16"
        ).split(", "):
            many = 2 if " and " in part or "both" in part or part.startswith("two") else 1
            total += many * next(width for kind, width in widths.items() if kind in part)
        assert total == memory.recipe_named(name).bytes_per_parameter, name


# ---- bytes and parameters ----


def test_every_recipe_is_shown_with_the_copies_that_it_has():
    for name, copies in step_checks.recipes().items():
        assert sum(copies.values()) == pytest.approx(memory.recipe_named(name).bytes_per_parameter)
        assert all(copies.values())
        assert name in step_checks.recipe_table()


@pytest.mark.parametrize("recipe", memory.RECIPE_NAMES)
@pytest.mark.parametrize("n_frozen", [0, 3, 1000])
def test_the_right_bytes_of_every_recipe_have_no_fault(recipe, n_frozen):
    assert step_checks.state_fault(STUDENT["state_bytes"], recipe, 1000, n_frozen) is None


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "must return a dict with the copies weights, gradients, master weights, optimizer, not None"),
        (112e9, "must return a dict"),
        ({"weights": 1}, "must return a dict"),
        (
            {"weights": "14 GB", "gradients": 0, "master weights": 0, "optimizer": 0},
            "weights must be a number",
        ),
        ({"weights": 2, "gradients": 2, "master weights": 4, "optimizer": 8}, "the bytes of one parameter"),
    ],
)
def test_what_are_no_bytes_is_said(answer, words):
    assert words in step_checks.state_fault(lambda n_params, recipe, n_frozen: answer)


@pytest.mark.parametrize(
    ("config", "change", "words"),
    [
        (LLAMA, -65 * 4096, "the two norms of every layer are missing; and the norm after the last"),
        (LLAMA, -4096, "the norm after the last layer is missing"),
        (LLAMA, -128256 * 4096, "embedding and output head are two matrices here"),
        (LLAMA, 32 * 2 * 4096 * 24 * 128, "have only num_key_value_heads heads"),
        (LLAMA, 7, "it is too many"),
        (LLAMA, -7, "it is too few"),
        (GPT2, -1024 * 768, "the learned positions are missing"),
        (GPT2, 50257 * 768, "the output head is the same matrix as the embedding"),
        (GPT2, -25 * 768, "a LayerNorm has a weight and a bias"),
        (
            GPT2,
            -12 * 9 * 768 - 1024 * 768,
            "the learned positions are missing, a row for each; and every matrix",
        ),
        (
            {**LLAMA, "head_dim": 64},
            32 * (2 * 64 * 4096 * 32 + 2 * 64 * 4096 * 8),
            "the heads have head_dim columns",
        ),
    ],
)
def test_a_part_that_was_forgotten_is_named(config, change, words):
    right = STUDENT["count_parameters"](config)
    assert step_checks.parameters_fault(lambda _: right, config) is None
    assert words in step_checks.parameters_fault(lambda _: right + change, config)


def test_the_published_counts_are_met():
    assert STUDENT["count_parameters"](GPT2) == 124_439_808
    assert STUDENT["count_parameters"](LLAMA) == 8_030_261_248


# ---- what runs out ----


@pytest.mark.parametrize("run", RUNS, ids=repr)
def test_a_right_plan_has_no_fault(run):
    sizes = (1, 2, 3, 10, 100, 1000)
    assert step_checks.step_time_fault(STUDENT["step_time_s"], run, sizes) is None
    assert step_checks.runs_out_fault(STUDENT["what_runs_out"], run, sizes) is None
    assert step_checks.smallest_fault(STUDENT["smallest_gpus"], run) is None


def test_the_runs_fail_in_every_way_and_the_model_answer_says_so():
    runs = step_checks.runs()
    smallest, out = STUDENT["smallest_gpus"], STUDENT["what_runs_out"]
    assert [smallest(run) for run in runs.values()] == [312, 3, None, None]
    assert [smallest(run) for run in step_checks.more_runs()] == [1, None, 3, 41]
    long, tuned, slow, gpt3 = runs.values()
    assert out(long, 311) == ["time"]
    assert out(long, 3) == ["time"]
    assert "memory" in out(long, 2)
    assert out(tuned, 2) == ["memory"]
    assert out(slow, 64) == ["time"]
    assert out(slow, 66) == ["time", "bandwidth"] == out(slow, 1024)
    assert out(gpt3, 10**6)[0] == "memory"
    assert round(4 * gpt3.n_params / 1e9) == 698
    assert round(gpt3.activation_bytes / 1e9) == 6
    # The deadline asks for more GPUs than there are sequences.
    small = step_checks.more_runs()[1]
    assert out(small, small.batch_sequences) == ["time"]
    assert out(small, 2 * small.batch_sequences) == []


def test_half_of_a_step_is_the_chapters_balance():
    run = step_checks.runs()["llama2-7b"]
    # N = 1 + 3/2 D B / F', with F' what a GPU really computes.
    balance = 1 + 1.5 * run.batch_tokens * run.bandwidth / (run.mfu * run.peak_flops)
    out = STUDENT["what_runs_out"]
    first = next(n for n in range(1, 5000) if "bandwidth" in out(run, n))
    assert first - 1 <= balance <= first


@pytest.mark.parametrize("answer", [None, "memory", ["ram"], 3])
def test_what_is_no_list_of_resources_is_said(answer):
    run = RUNS[0]
    assert "must return a list of the words" in step_checks.runs_out_fault(lambda run, n: answer, run, (1,))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (0, "a whole number from 1"),
        (2.5, "a whole number from 1"),
        ("many", "a whole number from 1"),
        (None, "with some number of GPUs nothing runs out"),
        (2000, "a step has 1024 sequences"),
        (311, "but with so many GPUs time runs out"),
        (313, "with 312 GPUs nothing runs out either"),
    ],
)
def test_a_wrong_number_of_gpus_is_told_apart(answer, words):
    assert words in step_checks.smallest_fault(lambda run: answer, RUNS[0])


def test_a_mistake_in_an_earlier_task_is_not_paid_for_again():
    own: dict[str, Any] = {}
    exec(WHAT.replace("return compute_s(run, n_gpus) + ring_s", "return 0 * ring_s") + SMALLEST, own)
    run, carry = RUNS[0], {name: STUDENT[name] for name in ("step_time_s", "what_runs_out")}
    assert step_checks.runs_out_fault(own["what_runs_out"], run, (1, 64), "time")
    assert step_checks.runs_out_fault(own["what_runs_out"], run, (1, 64), "time", carry) is None
    assert step_checks.smallest_fault(own["smallest_gpus"], run)
    assert step_checks.smallest_fault(own["smallest_gpus"], run, carry) is None


def test_a_table_of_runs_survives_a_search_without_end():
    def endless(run):
        n_gpus = 1
        while STUDENT["what_runs_out"](run, n_gpus):
            n_gpus += 1
            if n_gpus > 10**4:
                raise RuntimeError("never")
        return n_gpus

    table = step_checks.overview(endless, STUDENT["what_runs_out"], step_checks.runs().values())
    assert table.splitlines()[-1].split()[1] == "?"
    assert "312" in table


# ---- measured ----


def test_rates_are_measured_with_and_without_numpy(monkeypatch):
    table = step_checks.measured_rates()
    assert "Python lists, 48 x 48 product" in table
    assert "sum of two vectors of 4,000,000" in table
    for line in table.splitlines()[1:]:
        assert float(line.split()[-2]) > 0
    monkeypatch.setattr(step_checks, "installed", lambda module: False)
    assert "With NumPy installed" in step_checks.measured_rates()


def test_the_measured_product_is_a_product():
    left, right = [[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]
    assert step_checks._python_product(left, right) == [[19.0, 22.0], [43.0, 50.0]]
    assert step_checks._product_flop(1024) == 2 * 1024**3

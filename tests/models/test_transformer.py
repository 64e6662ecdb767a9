"""Parameters and FLOPs: against published counts, the papers' equations and configs from the wild."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import transformer
from shardlab.hardware import accelerator
from shardlab.transformer import from_hf_config, gpt, llama, preset

# Exact counts: the checkpoints' own totals, as in their published weight indices.
EXACT = {
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_parameters_are_those_of_the_published_weights(name: str) -> None:
    assert transformer.parameters(preset(name)) == EXACT[name]


def test_mixtral_activates_12_9_billion() -> None:
    """Mixtral paper: 13B active parameters per token of 47B."""
    assert transformer.active_parameters(preset("mixtral-8x7b")) / 1e9 == pytest.approx(12.88, abs=0.01)
    dense = preset("llama3-8b")
    assert transformer.active_parameters(dense) == transformer.parameters(dense)


# SC21 Table 1: billions as printed.
SC21_TABLE_1 = (
    ("sc21-1.7b", 1.7),
    ("sc21-3.6b", 3.6),
    ("sc21-7.5b", 7.5),
    ("sc21-18.4b", 18.4),
    ("sc21-39.1b", 39.1),
    ("sc21-76.1b", 76.1),
    ("sc21-145.6b", 145.6),
    ("sc21-310.1b", 310.1),
    ("mt-nlg-530b", 529.6),
    ("sc21-1008b", 1008.0),
)


@pytest.mark.parametrize(("name", "billions"), SC21_TABLE_1)
def test_sc21_table_1_parameters(name: str, billions: float) -> None:
    """Equation 2 gives the printed column to its one decimal (1.65 is printed 1.7, 7.47 as 7.5)."""
    model = preset(name)
    by_equation = transformer.sc21_parameters(model.layers, model.hidden, model.vocabulary, model.positions)
    assert by_equation / 1e9 == pytest.approx(billions, abs=0.051)
    # Counting adds the final norm, which the equation leaves out.
    assert transformer.parameters(model) - by_equation == pytest.approx(2 * model.hidden, abs=1)


def test_gpt_flops_are_the_papers() -> None:
    """Model FLOP of Korthikanti's equation 7; with full recomputation SC21's equation 3."""
    model, batch, s = preset("gpt3-175b"), 1536, 2048
    depth, h, v = model.layers, model.hidden, model.vocabulary
    korthikanti = 72 * batch * depth * s * h * h * (1 + s / (6 * h) + v / (12 * h * depth))
    assert transformer.model_flops(model, s, batch) == pytest.approx(korthikanti, rel=1e-12)
    sc21 = 96 * batch * s * depth * h * h * (1 + s / (6 * h) + v / (16 * depth * h))
    assert transformer.hardware_flops(model, s, batch, "full") == pytest.approx(sc21, rel=1e-12)
    # Selective recomputation repeats two products of 2 B s^2 h per layer, as the text before equation 8 says: 1/18 s/h.
    extra = transformer.hardware_flops(model, s, batch, "selective") - transformer.model_flops(
        model, s, batch
    )
    assert extra == pytest.approx(4 * batch * s * s * h * depth, rel=1e-9)
    assert transformer.hardware_flops(model, s, batch) == transformer.model_flops(model, s, batch)


def test_six_flops_per_parameter_and_token() -> None:
    """6 P per token without attention, for short sequences and small vocabularies."""
    model = gpt(96, 12_288, 96, vocabulary=128)
    assert transformer.model_flops(model, 1, 1) == pytest.approx(
        transformer.training_flops(transformer.parameters(model), 1), rel=0.01
    )


def test_training_flops_of_gpt3() -> None:
    """Brown et al. (arXiv 2005.14165), Table D.1: 174.6 billion parameters, 300 billion tokens, 3.14e23 FLOP."""
    assert transformer.training_flops(174.6e9, 300e9) == pytest.approx(3.14e23, rel=0.002)
    for bad in (0, -1, math.nan, "7B"):
        with pytest.raises(ValueError, match="params must be a finite number above 0"):
            transformer.training_flops(bad, 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tokens must be a finite number above 0 tokens"):
            transformer.training_flops(1, bad)  # type: ignore[arg-type]


# Korthikanti Table 5: model, GPUs, batch, seconds with selective recomputation, MFU %, HFU %.
KORTHIKANTI_TABLE_5 = (
    ("korthikanti-22b", 8, 4, 1.10, 41.5, 43.7),
    ("korthikanti-175b", 64, 64, 13.75, 51.4, 52.8),
    ("korthikanti-530b", 280, 280, 37.83, 56.0, 57.0),
    ("korthikanti-530b", 2240, 2240, 39.15, 54.2, 55.1),
    ("korthikanti-1t", 512, 512, 71.49, 56.3, 57.0),
)


@pytest.mark.parametrize(("name", "gpus", "batch", "seconds", "mfu", "hfu"), KORTHIKANTI_TABLE_5)
def test_mfu_and_hfu_columns(
    name: str, gpus: int, batch: int, seconds: float, mfu: float, hfu: float
) -> None:
    """The printed seconds give the printed MFU; 22B within the rounding of 1.10 s (0.5 %).

    The printed HFU follows from the paper's equation 8, which adds s/(6h) for selective recomputation. The operations
    named just before it (2 B s^2 h twice per layer) are a third of that, s/(18h): the printed HFU of 22B to 1T is 0.3 to
    1.5 points above what its own count gives.
    """
    model = preset(name)
    capacity = seconds * gpus * 312e12
    flops = transformer.model_flops(model, 2048, batch)
    assert 100 * flops / capacity == pytest.approx(mfu, abs=0.25)
    equation_8 = flops + 72 * batch * model.layers * 2048 * model.hidden**2 * 2048 / (6 * model.hidden)
    assert 100 * equation_8 / capacity == pytest.approx(hfu, abs=0.25)
    counted = transformer.hardware_flops(model, 2048, batch, "selective")
    assert counted - flops == pytest.approx((equation_8 - flops) / 3, rel=1e-9)


# SC21 Table 2: parameters (billions), GPUs, TFLOP/s, days for 300 billion tokens.
SC21_TABLE_2 = (
    (174.6, 384, 144, 90),
    (174.6, 768, 88, 74),
    (174.6, 1536, 44, 74),
    (529.6, 640, 138, 169),
    (529.6, 1120, 98, 137),
    (529.6, 2240, 48, 140),
    (174.6, 384, 153, 84),
    (174.6, 768, 149, 43),
    (174.6, 1536, 141, 23),
    (529.6, 560, 171, 156),
    (529.6, 1120, 167, 80),
    (529.6, 2240, 159, 42),
)


@pytest.mark.parametrize(("billions", "gpus", "teraflops", "days"), SC21_TABLE_2)
def test_sc21_table_2_days(billions: float, gpus: int, teraflops: float, days: float) -> None:
    """Days from the printed TFLOP/s, with the exact FLOP count: within a day, as printed without decimals.

    Equation 4 rounds 96/12 to 8 parameters and leaves attention and head out: up to 3 % fewer days.
    """
    model = preset("gpt3-175b" if billions < 200 else "mt-nlg-530b")
    flops_per_token = transformer.hardware_flops(model, 2048, 1, "full") / 2048
    exact = 300e9 * flops_per_token / (gpus * teraflops * 1e12) / 86_400
    assert exact == pytest.approx(days, abs=1.05)
    rule = transformer.sc21_training_days(billions * 1e9, 300e9, gpus, teraflops * 1e12)
    assert rule == pytest.approx(exact, rel=0.03)


def test_sc21_text_days() -> None:
    """34 days for GPT-3 on 1,024 A100 at 140 TFLOP/s, 84 days for 1T and 450B tokens on 3,072 at 163."""
    assert transformer.sc21_training_days(175e9, 300e9, 1024, 140e12) == pytest.approx(33.9, abs=0.1)
    assert transformer.sc21_training_days(1008e9, 450e9, 3072, 163e12) == pytest.approx(83.9, abs=0.1)


@pytest.mark.parametrize(("teraflops", "percent"), [(430, 43.5), (400, 40.4), (380, 38.4)])
def test_llama3_table_4_mfu(teraflops: float, percent: float) -> None:
    """Printed 43, 41 and 38 %: over the dense 989 TFLOP/s the second is 40.4, which rounds to 40."""
    mfu = 100 * teraflops * 1e12 / accelerator("H100-80GB").peak_flops
    assert mfu == pytest.approx(percent, abs=0.05)


# ---------------------------------------------------------------- Hugging Face configs

LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA3_8B, 8_030_261_248),
        # Llama 3.2 1B: tied, head_dim given
        (
            {**LLAMA3_8B, "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "head_dim": 64, "tie_word_embeddings": True},
            1_235_814_400,
        ),
        (
            {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50_257, "n_inner": None},
            124_439_808,
        ),
        (
            {"model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 16, "intermediate_size": 8192, "vocab_size": 50_304, "max_position_embeddings": 2048},
            1_011_781_632,  # Pythia 1B: layers, norms and two embeddings
        ),
        (
            {"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 50_272, "max_position_embeddings": 2048, "word_embed_proj_dim": 768},
            125_239_296,
        ),
        (
            {"model_type": "qwen2", "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 24, "intermediate_size": 4864, "vocab_size": 151_936, "tie_word_embeddings": True},
            494_032_768,
        ),
        (
            {"model_type": "qwen3", "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "intermediate_size": 3072, "vocab_size": 151_936, "tie_word_embeddings": True},
            596_049_920,
        ),
        (
            {"model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "intermediate_size": 14_336, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32_000},
            46_702_792_704,
        ),
        (
            {"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151_936},
            30_532_122_624,
        ),
    ],
    ids=["llama3-8b", "llama3.2-1b", "gpt2", "pythia-1b", "opt-125m", "qwen2-0.5b", "qwen3-0.6b", "mixtral", "qwen3-30b-a3b"],
)  # fmt: skip
def test_configs_count_as_the_published_weights(config: dict[str, object], expected: int) -> None:
    assert transformer.parameters(from_hf_config(config)) == expected


def test_config_and_preset_agree() -> None:
    made, known = from_hf_config(LLAMA3_8B, name="x"), preset("llama3-8b")
    assert transformer.model_flops(made, 8192, 3) == transformer.model_flops(known, 8192, 3)
    assert made.kv_width == 1024
    assert made.dropout is False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "deepseek_v3"}, "model_type must be one of gpt2"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 30}, "must divide heads|divisible by heads"),
        ({"num_key_value_heads": 5}, "kv_heads must divide heads = 32"),
    ],
)
def test_configs_that_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_hf_config({**LLAMA3_8B, **change})
    with pytest.raises(ValueError, match=r"dict of config\.json"):
        from_hf_config("llama")


def test_expert_sizes_come_together() -> None:
    with pytest.raises(ValueError, match="experts must be above 0"):
        transformer.transformer(2, 64, 4, 100, top_k=2)
    with pytest.raises(ValueError, match="expert_ffn"):
        transformer.transformer(2, 64, 4, 100, experts=4, top_k=2)
    with pytest.raises(ValueError, match="name must be one of"):
        preset("gpt-5")


@given(
    layers=st.integers(1, 100),
    heads=st.sampled_from([4, 8, 16]),
    head_dim=st.sampled_from([32, 64, 128]),
    words=st.integers(1000, 200_000),
)
def test_grouped_queries_and_ties_only_save(layers: int, heads: int, head_dim: int, words: int) -> None:
    hidden = heads * head_dim
    full = llama(layers, hidden, heads, heads, 3 * hidden, words)
    grouped = llama(layers, hidden, heads, heads // 4, 3 * hidden, words)
    tied = llama(layers, hidden, heads, heads, 3 * hidden, words, tied=True)
    saved = layers * 2 * hidden * head_dim * (heads - heads // 4)
    assert transformer.parameters(full) - transformer.parameters(grouped) == saved
    assert transformer.parameters(full) - transformer.parameters(tied) == words * hidden
    assert transformer.model_flops(full, 128, 1) == transformer.model_flops(tied, 128, 1)
    assert transformer.model_flops(full, 128, 1, causal=True) < transformer.model_flops(full, 128, 1)

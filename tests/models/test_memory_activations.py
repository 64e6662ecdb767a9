"""Activations: Korthikanti's tables and figures, a count of what torch really saves, and conservation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.models import memory
from shardlab.models.pipeline_schedules import SCHEDULES
from shardlab.units import GIB

# Table 3 of Korthikanti et al. (arXiv 2205.05198): heads, hidden, layers, micro-batch, stages, chunks; s 2048, t 8.
MODELS = {
    "22B": (64, 6144, 48, 4, 1, 1),
    "175B": (96, 12288, 96, 1, 8, 3),
    "530B": (128, 20480, 105, 1, 35, 3),
    "1T": (160, 25600, 128, 1, 64, 1),
}


def stage(model: str, **options: object) -> memory.StageActivations:
    heads, hidden, layers, batch, stages, chunks = MODELS[model]
    return memory.stage_activations(
        layers,
        2048,
        batch,
        hidden,
        heads,
        tensor_parallel=8,
        pipeline_parallel=stages,
        micro_batches=stages * 8,
        schedule="interleaved-1f1b" if chunks > 1 else "1f1b",
        chunks=chunks,
        **options,  # type: ignore[arg-type]
    )


def layer(model: str, **options: object) -> memory.LayerActivations:
    heads, hidden, _, batch, _, _ = MODELS[model]
    return memory.layer_activations(2048, batch, hidden, heads, **options)  # type: ignore[arg-type]


# ---------------------------------------------------------------- Korthikanti et al.


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("t", [1, 2, 8])
def test_table_2(model: str, t: int) -> None:
    """All six rows, typed out from the paper: b sequences of s = 2048, width h, a heads, t ranks."""
    a, h, _, b, _, _ = MODELS[model]
    sbh = 2048 * b * h
    scores = 5 * a * 2048 / h
    rows = [
        ({}, sbh * (10 + 24 / t + scores / t)),
        ({"sequence_parallel": True}, sbh / t * (34 + scores)),
        ({"recompute": "selective"}, sbh * (10 + 24 / t)),
        ({"sequence_parallel": True, "recompute": "selective"}, 34 * sbh / t),
        ({"recompute": "full"}, 2 * sbh),
    ]
    for options, expected in rows:
        assert layer(model, tensor_parallel=t, **options).kept_bytes == pytest.approx(expected)
    if t == 1:
        assert layer(model).kept_bytes == pytest.approx(sbh * (34 + scores))


def test_equation_1_part_by_part() -> None:
    """Section 4.1: attention 11sbh + 5as²b, MLP 19sbh, layer norms 4sbh (each dropout mask belongs to its block)."""
    parts = layer("175B")
    sbh = 2048 * 12288
    half_masks = parts.dropout_masks / 2
    attention = parts.attention_input + parts.query_key_value + parts.attention_output + half_masks
    assert attention == 11 * sbh
    assert parts.scores == 5 * 96 * 2048**2
    assert parts.mlp + half_masks == 19 * sbh
    assert parts.norm_inputs == 4 * sbh
    assert math.fsum(size for _, size in parts.items) == parts.kept_bytes


@pytest.mark.parametrize("ffn", [4096, 11008, 16384])
def test_mlp_width_is_free(ffn: int) -> None:
    """For f other than 4h the layer keeps s b (18 h + 4 f + 5 a s)."""
    kept = memory.layer_activations(1024, 2, 4096, 32, ffn=ffn).kept_bytes
    assert kept == pytest.approx(1024 * 2 * (18 * 4096 + 4 * ffn + 5 * 32 * 1024))


@pytest.mark.parametrize(
    ("model", "none", "both", "states"),
    [
        ("22B", 59.25, 9.5625, 45.56),
        ("175B", 66.84, 12.35, 45.56),
        ("530B", 114.02, 23.08, 31.64),
        ("1T", 131.25, 26.56, 32.96),
    ],
)
def test_figure_1(model: str, none: float, both: float, states: float) -> None:
    """Bars of Figure 1 in GiB: activations with tensor parallelism only, with both techniques, and the states."""
    _, hidden, layers, _, stages, _ = MODELS[model]
    assert stage(model).layers / GIB == pytest.approx(none, abs=0.01)
    lean = stage(model, sequence_parallel=True, recompute="selective")
    assert lean.layers / GIB == pytest.approx(both, abs=0.01)
    params = 12 * layers * hidden**2 / (8 * stages)
    assert memory.model_states(params, 1, 0, "megatron-18").total_bytes / GIB == pytest.approx(
        states, abs=0.01
    )


@pytest.mark.parametrize(
    ("model", "percent"),
    [
        ("22B", (66.84, 49.42, 16.18, 7.64)),
        ("175B", (62.04, 56.53, 18.49, 8.71)),
        ("530B", (58.31, 62.04, 20.27, 9.42)),
        ("1T", (58.31, 62.04, 20.27, 9.42)),
    ],
)
def test_figure_7(model: str, percent: tuple[float, ...]) -> None:
    """Per cent of tensor-parallel memory: sequence parallel, selective, both, full; read off within 0.15 points."""
    base = layer(model, tensor_parallel=8).kept_bytes
    choices = (
        {"sequence_parallel": True},
        {"recompute": "selective"},
        {"sequence_parallel": True, "recompute": "selective"},
        {"recompute": "full"},
    )
    for options, expected in zip(choices, percent, strict=True):
        share = 100 * layer(model, tensor_parallel=8, **options).kept_bytes / base
        assert share == pytest.approx(expected, abs=0.15)


def test_selective_recomputation_saves_70_and_65_percent() -> None:
    assert memory.selective_saving(2048, 12288, 96) == pytest.approx(0.70, abs=0.005)
    assert memory.selective_saving(2048, 20480, 128) == pytest.approx(0.65, abs=0.005)
    both = layer("175B", sequence_parallel=True, recompute="selective")
    saved = 1 - both.kept_bytes / layer("175B", sequence_parallel=True).kept_bytes
    assert saved == pytest.approx(memory.selective_saving(2048, 12288, 96))


def test_equation_5_first_stage_holds_all_layers() -> None:
    """1F1B: p micro-batches of L/p layers are L layers' worth, whatever p is; interleaving adds (p-1)/(p v)."""
    whole = memory.stage_activations(96, 2048, 1, 12288, 96).layers
    for stages in (2, 8, 32):
        split = memory.stage_activations(96, 2048, 1, 12288, 96, pipeline_parallel=stages, micro_batches=256)
        assert split.layers == pytest.approx(whole)
    woven = memory.stage_activations(
        96, 2048, 1, 12288, 96, pipeline_parallel=8, micro_batches=256, schedule="interleaved-1f1b", chunks=3
    )
    assert woven.layers == pytest.approx(whole * (1 + 7 / (8 * 3)))


def test_section_4_3_embedding_and_logits() -> None:
    """Extras: s b h p / t for the embedding's dropout; 4 s b h / t (1 + V/h) for head and logits when p = 1."""
    s, b, h, v, t = 2048, 4, 6144, 51200, 8
    one = memory.stage_activations(48, s, b, h, 64, v, tensor_parallel=t, sequence_parallel=True)
    assert one.embedding == pytest.approx(s * b * h / t)
    assert one.head == pytest.approx(4 * s * b * h / t * (1 + v / h))
    options = {"tensor_parallel": t, "sequence_parallel": True, "pipeline_parallel": 4, "micro_batches": 16}
    first = memory.stage_activations(48, s, b, h, 64, v, rank=0, **options)  # type: ignore[arg-type]
    last = memory.stage_activations(48, s, b, h, 64, v, rank=3, **options)  # type: ignore[arg-type]
    assert first.embedding == pytest.approx(s * b * h * 4 / t)
    assert first.head == 0
    assert last.embedding == 0
    assert last.head == pytest.approx(4 * s * b * h / t * (1 + v / h))


# ---------------------------------------------------------------- what torch saves


def _saved_bytes(module: object, x: object) -> int:
    """Bytes of the distinct tensors that autograd keeps for the backward pass, parameters left out."""
    import torch

    own = {p.untyped_storage().data_ptr() for p in module.parameters()}  # type: ignore[attr-defined]
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    keep = []  # tensors must outlive the count, or their addresses are used twice

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda t: (keep.append(t), pack(t))[1], unpack):
        out = module(x)  # type: ignore[operator]
    keep.append(out)
    return sum(seen.values())


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("flash", [False, True])
def test_formula_counts_what_torch_really_saves(gated: bool, flash: bool) -> None:
    """A layer in fp32 without dropout, against autograd's saved tensors: the same bytes, tensor by tensor.

    Torch also keeps mean and reciprocal deviation of each norm (8 bytes per token each); an eager SwiGLU keeps
    silu(gate) besides, which a fused one recomputes.
    """
    torch = pytest.importorskip("torch", reason="torch is an optional dependency")
    from torch import nn
    from torch.nn import functional as F

    s, b, h, a, f = 32, 3, 48, 4, 80

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(h), nn.LayerNorm(h)])
            self.q, self.k, self.v, self.o = (nn.Linear(h, h) for _ in range(4))
            self.up, self.down = nn.Linear(h, f), nn.Linear(f, h)
            self.gate = nn.Linear(h, f) if gated else None

        def heads(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(b, s, a, h // a).transpose(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norms[0](x)
            q, k, v = self.heads(self.q(y)), self.heads(self.k(y)), self.heads(self.v(y))
            if flash:
                out = F.scaled_dot_product_attention(q, k, v)
            else:
                q = q.contiguous().view(b * a, s, h // a)
                k = k.contiguous().view(b * a, s, h // a)
                v = v.contiguous().view(b * a, s, h // a)
                out = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v).view(b, a, s, h // a)
            x = x + self.o(out.transpose(1, 2).reshape(b, s, h))
            y = self.norms[1](x)
            inner = F.silu(self.gate(y)) * self.up(y) if self.gate is not None else F.gelu(self.up(y))
            return x + self.down(inner)

    torch.manual_seed(0)
    measured = _saved_bytes(Layer(), torch.randn(b, s, h, requires_grad=True))
    ours = memory.layer_activations(
        s, b, h, a, ffn=f, gated=gated, flash_attention=flash, dropout=False, element_bytes=4
    )
    norm_statistics = 2 * 8 * b * s
    unfused_silu = 4 * f * b * s if gated else 0
    assert measured == ours.kept_bytes + norm_statistics + unfused_silu


# ---------------------------------------------------------------- variants


def test_flash_attention_replaces_scores_by_four_bytes_per_head() -> None:
    plain = memory.layer_activations(4096, 1, 4096, 32, tensor_parallel=4)
    flash = memory.layer_activations(4096, 1, 4096, 32, tensor_parallel=4, flash_attention=True)
    assert plain.scores == 5 * 32 * 4096**2 / 4
    assert flash.scores == 4 * 32 * 4096 / 4
    selective = memory.layer_activations(4096, 1, 4096, 32, tensor_parallel=4, recompute="selective")
    assert selective.kept_bytes == pytest.approx(plain.kept_bytes - plain.scores)
    assert selective.recomputed_bytes == plain.scores


def test_llama_3_8b_layer() -> None:
    """32 heads, 8 key/value heads of 128, SwiGLU of 14336, no dropout: e (2h+h+h+2·1024+h+h+3·14336) per token."""
    kept = memory.layer_activations(
        8192, 1, 4096, 32, ffn=14336, kv_heads=8, gated=True, flash_attention=True, dropout=False
    )
    per_token = 2 * (2 * 4096 + 4096 + 4096 + 2 * 1024 + 4096 + 4096 + 3 * 14336) + 4 * 32
    assert kept.kept_bytes == 8192 * per_token


def test_fewer_key_value_heads_than_ranks_are_copied() -> None:
    """8 key/value heads on 16 ranks: each rank keeps one head, so the shares add up to 16 heads."""
    one = memory.layer_activations(1024, 1, 4096, 32, kv_heads=8, tensor_parallel=16)
    assert one.query_key_value == 1024 * 2 * (4096 + 2 * 16 * 128) / 16


def test_experts_keep_top_k_copies() -> None:
    """8 experts, top 2, no shared expert: two copies of the MLP's inner tensors, and the routed copies themselves."""
    routed = memory.layer_activations(
        4096, 1, 4096, 32, gated=True, dropout=False, experts=8, top_k=2, expert_ffn=14336
    )
    dense = memory.layer_activations(4096, 1, 4096, 32, ffn=14336, gated=True, dropout=False)
    inner = 4096 * 2 * 3 * 14336
    extra = 4096 * (2 * 4096 * (2 + 2) + 4 * 8)
    assert routed.mlp == pytest.approx(dense.mlp + inner + extra)
    assert memory.mlp_saved_width(1000, True, 8, 2, 500, 1.25) == 3 * (1000 + 2.5 * 500)


def test_no_dropout_no_masks() -> None:
    with_masks = memory.layer_activations(512, 1, 1024, 16)
    without = memory.layer_activations(512, 1, 1024, 16, dropout=False)
    assert without.dropout_masks == 0
    assert without.scores == 2 * 16 * 512**2
    assert with_masks.kept_bytes - without.kept_bytes == pytest.approx(512 * (2 * 1024 + 3 * 16 * 512))


def test_full_recomputation_needs_one_whole_layer_while_it_runs() -> None:
    full = memory.stage_activations(32, 2048, 1, 4096, 32, recompute="full")
    none = memory.stage_activations(32, 2048, 1, 4096, 32)
    assert full.recomputed + full.layers / 32 == pytest.approx(none.layers / 32)
    assert full.layers == 32 * 2 * 2048 * 4096
    assert full.total_bytes < none.total_bytes


# ---------------------------------------------------------------- schedules


def test_in_flight_by_schedule() -> None:
    """8 stages, 64 micro-batches, first rank: all, p, p + (p-1)/v, p, 2p-1, p, p + 1/2."""
    held = {
        name: memory.in_flight_micro_batches(name, 8, 0, 64, 2 if name == "interleaved-1f1b" else 1)
        for name in SCHEDULES
    }
    assert held == {
        "gpipe": 64,
        "1f1b": 8,
        "interleaved-1f1b": 8 + 7 / 2,
        "zb-h1": 8,
        "zb-h2": 15,
        "zb-v": 8,
        "dualpipe-v": 8.5,
    }
    assert [memory.in_flight_micro_batches("1f1b", 4, rank, 64) for rank in range(4)] == [4, 3, 2, 1]
    assert memory.in_flight_micro_batches("1f1b", 8, 0, 3) == 3


def test_gpipe_keeps_the_logits_of_all_micro_batches() -> None:
    options = {"pipeline_parallel": 4, "rank": 3, "micro_batches": 16}
    one = memory.stage_activations(8, 512, 1, 512, 8, 32000, schedule="1f1b", **options)  # type: ignore[arg-type]
    all_of_them = memory.stage_activations(8, 512, 1, 512, 8, 32000, schedule="gpipe", **options)  # type: ignore[arg-type]
    assert all_of_them.head == pytest.approx(16 * one.head)


def test_a_v_brings_the_head_to_rank_0() -> None:
    for rank, has_head in ((0, True), (3, False)):
        part = memory.stage_activations(
            16, 512, 1, 512, 8, 32000, pipeline_parallel=4, micro_batches=8, schedule="zb-v", rank=rank
        )
        assert (part.head > 0) == has_head


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.layer_activations(2048, 1, 4096, 30), "hidden must be divisible by heads = 30"),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, kv_heads=5),
            "heads must be divisible by kv_heads = 5",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, kv_heads=64),
            "kv_heads must be a whole number from 1 to 32",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, tensor_parallel=3),
            "heads must be divisible by tensor_parallel = 3",
        ),
        (
            lambda: memory.layer_activations(2050, 1, 4096, 32, context_parallel=4),
            "sequence must be divisible by context_parallel = 4",
        ),
        (
            lambda: memory.layer_activations(2052, 1, 4096, 32, tensor_parallel=8, sequence_parallel=True),
            "sequence / context_parallel must be divisible by tensor_parallel = 8",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, recompute="some"),
            "recompute must be one of 'none'",
        ),
        (
            lambda: memory.layer_activations(2048, 0, 4096, 32),
            "micro_batch must be a whole number of at least 1",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, element_bytes=0),
            "element_bytes must be a finite number above 0",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, experts=8, top_k=9, expert_ffn=64),
            "top_k must be a whole number from 1 to 8",
        ),
        (
            lambda: memory.layer_activations(2048, 1, 4096, 32, experts=8, top_k=2),
            "expert_ffn must be a whole number",
        ),
        (
            lambda: memory.stage_activations(33, 2048, 1, 4096, 32, pipeline_parallel=4),
            "layers must be divisible by pipeline_parallel x chunks = 4",
        ),
        (
            lambda: memory.stage_activations(32, 2048, 1, 4096, 32, pipeline_parallel=4, rank=4),
            "rank must be a whole number from 0 to 3",
        ),
        (
            lambda: memory.stage_activations(32, 2048, 1, 4096, 32, schedule="1f2b"),
            "schedule must be one of 'gpipe'",
        ),
        (lambda: memory.stage_activations(32, 2048, 1, 4096, 32, chunks=2), "chunks must be 1 for 1f1b"),
        (lambda: memory.stage_activations(32, 2048, 1, 4096, 32, 50000, logit_bytes=0), "logit_bytes"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


# ---------------------------------------------------------------- properties

sizes_st = st.fixed_dictionaries(
    {
        "sequence": st.integers(1, 64).map(lambda n: 64 * n),
        "micro_batch": st.integers(1, 8),
        "hidden": st.integers(1, 64).map(lambda n: 128 * n),
        "heads": st.sampled_from([16, 32]),
        "ffn": st.integers(1, 40000),
        "kv_heads": st.sampled_from([1, 4, 8, 16]),
        "gated": st.booleans(),
        "flash_attention": st.booleans(),
        "dropout": st.booleans(),
    }
)


@settings(deadline=None, max_examples=50)
@given(sizes=sizes_st, ranks=st.sampled_from([2, 4, 8, 16]))
def test_with_sequence_parallelism_the_shares_add_up(sizes: dict[str, object], ranks: int) -> None:
    """Conservation: t ranks together keep exactly one layer (apart from copied key/value heads)."""
    sizes = {**sizes, "kv_heads": 16}
    whole = memory.layer_activations(**sizes)  # type: ignore[arg-type]
    share = memory.layer_activations(**sizes, tensor_parallel=ranks, sequence_parallel=True)  # type: ignore[arg-type]
    for (_, one), (_, part) in zip(whole.items, share.items, strict=True):
        assert part * ranks == pytest.approx(one)


@settings(deadline=None, max_examples=50)
@given(sizes=sizes_st, ranks=st.sampled_from([2, 4, 8]))
def test_context_parallel_shares_add_up(sizes: dict[str, object], ranks: int) -> None:
    whole = memory.layer_activations(**sizes).kept_bytes  # type: ignore[arg-type]
    share = memory.layer_activations(**sizes, context_parallel=ranks).kept_bytes  # type: ignore[arg-type]
    assert share * ranks == pytest.approx(whole)


@settings(deadline=None, max_examples=50)
@given(sizes=sizes_st, t=st.sampled_from([1, 2, 8]), sp=st.booleans())
def test_recomputation_only_ever_saves(sizes: dict[str, object], t: int, sp: bool) -> None:
    none, selective, full = (
        memory.layer_activations(**sizes, tensor_parallel=t, sequence_parallel=sp, recompute=kind)  # type: ignore[arg-type]
        for kind in memory.RECOMPUTATIONS
    )
    assert full.kept_bytes < selective.kept_bytes <= none.kept_bytes
    assert none.recomputed_bytes == 0
    for kind in (selective, full):
        assert kind.kept_bytes + kind.recomputed_bytes == pytest.approx(none.kept_bytes)


@settings(deadline=None, max_examples=50)
@given(sizes=sizes_st)
def test_sequence_parallelism_never_costs_memory(sizes: dict[str, object]) -> None:
    plain = memory.layer_activations(**sizes, tensor_parallel=8)  # type: ignore[arg-type]
    split = memory.layer_activations(**sizes, tensor_parallel=8, sequence_parallel=True)  # type: ignore[arg-type]
    assert split.kept_bytes < plain.kept_bytes

"""Transformer configurations: parameters and FLOPs, from explicit sizes, a preset or a Hugging Face config.

One symbol table: L layers, h hidden width, a query heads, g key/value heads, d head width, f MLP width,
V vocabulary, s sequence (tokens), B sequences per step. One multiply-add counts as two FLOP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import choice, count, positive

NORMS = ("layernorm", "rmsnorm")
RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer. Build one with :func:`gpt`, :func:`llama` or :func:`from_hf_config`.

    Attributes:
        name: a label.
        layers: ``L``.
        hidden: ``h``.
        heads: ``a``.
        kv_heads: g (equal to ``heads`` without grouped-query attention).
        head_dim: d; ``heads * head_dim`` need not equal ``hidden``.
        ffn: f, width of the dense MLP, or of the shared expert (0 for none) when ``experts`` is above 0.
        vocabulary: V, as padded by whoever ran it.
        gated: the MLP has a gate (SwiGLU and the like): three matrices instead of two.
        tied: input embedding and output head are one matrix.
        positions: rows of a learned position embedding, 0 for rotary or none.
        norm: ``"layernorm"`` (weight and bias) or ``"rmsnorm"`` (weight).
        qkv_bias, output_bias, mlp_bias: whether those matrices carry a bias.
        qk_norm: query and key have a norm of ``head_dim`` each.
        experts: routed experts per layer, 0 for a dense model.
        top_k: experts that process one token.
        expert_ffn: f of one routed expert.
        dropout: trained with dropout on residuals and attention.
        source: where the sizes were published.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    gated: bool
    tied: bool
    positions: int
    norm: str
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    experts: int
    top_k: int
    expert_ffn: int
    dropout: bool
    source: str

    @property
    def query_width(self) -> int:
        """``a d``: columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """``g d``: columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim


def transformer(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    tied: bool = True,
    positions: int = 0,
    norm: str = "layernorm",
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    dropout: bool = False,
    name: str = "custom",
    source: str = "the caller",
) -> Transformer:
    """A checked :class:`Transformer` from explicit sizes; :func:`gpt` and :func:`llama` have better defaults.

    Args:
        ffn: ``4 hidden`` by default for a dense model; with experts, the width of a shared expert, 0 by default.
        kv_heads: ``heads`` by default.
        head_dim: ``hidden / heads`` by default.
        others: as in :class:`Transformer`.

    Raises:
        ValueError: a size is out of range, heads do not divide, or expert sizes are incomplete.
    """
    depth = count("layers", layers)
    width = count("hidden", hidden)
    n_heads = count("heads", heads)
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    if n_heads % n_kv:
        raise ValueError(
            f"kv_heads must divide heads = {n_heads}, as each key/value head serves as many queries, not {n_kv}"
        )
    if head_dim is None:
        if width % n_heads:
            raise ValueError(f"hidden must be divisible by heads = {n_heads}, or give head_dim, not {width}")
        per_head = width // n_heads
    else:
        per_head = count("head_dim", head_dim)
    n_experts = count("experts", experts, least=0)
    if n_experts:
        chosen = count("top_k", top_k, most=n_experts)
        routed = count("expert_ffn", expert_ffn)
        inner = 0 if ffn is None else count("ffn", ffn, least=0)
    else:
        if top_k or expert_ffn:
            raise ValueError(f"experts must be above 0 when top_k or expert_ffn is given, not {experts!r}")
        chosen = routed = 0
        inner = 4 * width if ffn is None else count("ffn", ffn)
    return Transformer(
        name=name,
        layers=depth,
        hidden=width,
        heads=n_heads,
        kv_heads=n_kv,
        head_dim=per_head,
        ffn=inner,
        vocabulary=count("vocabulary", vocabulary),
        gated=bool(gated),
        tied=bool(tied),
        positions=count("positions", positions, least=0),
        norm=choice("norm", norm, NORMS),
        qkv_bias=bool(qkv_bias),
        output_bias=bool(output_bias),
        mlp_bias=bool(mlp_bias),
        qk_norm=bool(qk_norm),
        experts=n_experts,
        top_k=chosen,
        expert_ffn=routed,
        dropout=bool(dropout),
        source=source,
    )


def gpt(
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int = 51_200,
    positions: int = 2048,
    name: str = "GPT",
    source: str = "the caller",
) -> Transformer:
    """A GPT-2/GPT-3 style model: MLP of 4h, biases, LayerNorm, learned positions, tied embeddings, dropout.

    Raises:
        ValueError: a size is out of range.
    """
    return transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        positions=positions,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dropout=True,
        name=name,
        source=source,
    )


def llama(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocabulary: int,
    tied: bool = False,
    name: str = "Llama",
    source: str = "the caller",
) -> Transformer:
    """A Llama style model: gated MLP, grouped-query attention, RMSNorm, rotary positions, no bias, no dropout.

    Raises:
        ValueError: a size is out of range.
    """
    return transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=ffn,
        vocabulary=vocabulary,
        gated=True,
        tied=tied,
        norm="rmsnorm",
        name=name,
        source=source,
    )


# ---------------------------------------------------------------- parameters


def _norm_params(model: Transformer, width: int) -> int:
    return width * (2 if model.norm == "layernorm" else 1)


def attention_params(model: Transformer) -> int:
    """Parameters of one layer's attention: ``h d (2a + 2g)``, its biases and query/key norms."""
    query, key_value, hidden = model.query_width, model.kv_width, model.hidden
    total = 2 * hidden * query + 2 * hidden * key_value
    if model.qkv_bias:
        total += query + 2 * key_value
    if model.output_bias:
        total += hidden
    if model.qk_norm:
        total += 2 * _norm_params(model, model.head_dim)
    return total


def _mlp_params(model: Transformer, ffn: int) -> int:
    if not ffn:
        return 0
    into = 2 if model.gated else 1
    total = (into + 1) * model.hidden * ffn
    if model.mlp_bias:
        total += into * ffn + model.hidden
    return total


def dense_mlp_params(model: Transformer) -> int:
    """Parameters of one layer's dense MLP (or shared expert): ``2 h f``, gated ``3 h f``, and biases."""
    return _mlp_params(model, model.ffn)


def expert_params(model: Transformer) -> int:
    """Parameters of one layer's routed experts, all of them, without the router."""
    return model.experts * _mlp_params(model, model.expert_ffn)


def layer_params(model: Transformer) -> int:
    """Parameters of one layer: attention, MLP, experts, router and two norms. GPT: ``12 h^2 + 13 h``."""
    router = model.hidden * model.experts
    norms = 2 * _norm_params(model, model.hidden)
    return attention_params(model) + dense_mlp_params(model) + expert_params(model) + router + norms


def embedding_params(model: Transformer) -> int:
    """Parameters of the input embedding and learned positions: ``(V + positions) h``."""
    return (model.vocabulary + model.positions) * model.hidden


def head_params(model: Transformer) -> int:
    """Parameters of the output head that are not the input embedding: ``V h``, or 0 when tied."""
    return 0 if model.tied else model.vocabulary * model.hidden


def parameters(model: Transformer) -> int:
    """All parameters, exactly, with the final norm: ``L layer + embedding + head + norm``.

    Source: SC21 (arXiv 2104.04473), equation 2, which leaves out the final norm's 2h; the other forms by counting.
    """
    final_norm = _norm_params(model, model.hidden)
    return model.layers * layer_params(model) + embedding_params(model) + head_params(model) + final_norm


def active_parameters(model: Transformer) -> int:
    """Parameters that one token meets: with experts, ``top_k`` of them; a dense model's are all active."""
    if not model.experts:
        return parameters(model)
    idle = (model.experts - model.top_k) * _mlp_params(model, model.expert_ffn)
    return parameters(model) - model.layers * idle


def sc21_parameters(layers: int, hidden: int, vocabulary: int, sequence: int) -> float:
    """``12 L h^2 (1 + 13/(12h) + (V+s)/(12 L h))``: parameters of a GPT model as Megatron's paper counts them.

    Raises:
        ValueError: a size is out of range.

    Source: Narayanan et al., SC21 (arXiv 2104.04473), equation 2.
    """
    depth, width = count("layers", layers), count("hidden", hidden)
    words, length = count("vocabulary", vocabulary), count("sequence", sequence)
    return 12 * depth * width * width * (1 + 13 / (12 * width) + (words + length) / (12 * depth * width))


# ---------------------------------------------------------------- FLOPs


def layer_matmul_flops_per_token(model: Transformer) -> float:
    """FLOP of one layer's matrix products for one token, forward pass, without the attention scores."""
    into = 3 if model.gated else 2
    width = model.hidden
    attention = 2 * width * model.query_width + 2 * width * model.kv_width
    mlp = into * width * (model.ffn + model.top_k * model.expert_ffn) + width * model.experts
    return 2.0 * (attention + mlp)


def layer_attention_flops_per_token(model: Transformer, sequence: int) -> float:
    """FLOP of one layer's scores and weighted values for one token, forward: ``4 s a d``, no causal saving."""
    return 4.0 * count("sequence", sequence) * model.query_width


def forward_flops_per_token(model: Transformer, sequence: int, causal: bool = False) -> float:
    """FLOP of one forward pass for one token: layers and output head; the embedding look-up is free.

    ``causal`` counts only the scores at or below the diagonal. The Megatron papers and most published MFU count
    all of them, which is the default.
    """
    share = 0.5 * (1 + 1 / count("sequence", sequence)) if causal else 1.0
    per_layer = layer_matmul_flops_per_token(model) + share * layer_attention_flops_per_token(model, sequence)
    return model.layers * per_layer + 2.0 * model.hidden * model.vocabulary


def model_flops(model: Transformer, sequence: int, batch: int, causal: bool = False) -> float:
    """Model FLOP of one step (forward and backward, no recomputation): ``3 B s`` times the forward of one token.

    For a GPT this is ``72 B L s h^2 (1 + s/(6h) + V/(12 h L))``. MFU divides this by time, ranks and dense peak.

    Args:
        sequence: s, tokens.
        batch: B, sequences per step over all ranks.

    Raises:
        ValueError: a size is out of range.

    Source: Korthikanti et al. (arXiv 2205.05198), appendix A, equation 7.
    """
    return (
        3.0
        * count("batch", batch)
        * count("sequence", sequence)
        * forward_flops_per_token(model, sequence, causal)
    )


def recomputed_flops(
    model: Transformer, sequence: int, batch: int, recompute: str, causal: bool = False
) -> float:
    """FLOP that recomputation adds: 0, the attention scores (``"selective"``) or the layers' forward (``"full"``).

    Raises:
        ValueError: a size is out of range or ``recompute`` is unknown.

    Source: Korthikanti et al. (arXiv 2205.05198), appendix A, the operations named before equation 8 (the equation
    itself adds three times as many); SC21 equation 3 for full recomputation.
    """
    kind = choice("recompute", recompute, RECOMPUTATIONS)
    tokens = count("batch", batch) * count("sequence", sequence)
    if kind == "none":
        return 0.0
    if kind == "full":
        head = 2.0 * model.hidden * model.vocabulary
        return tokens * (forward_flops_per_token(model, sequence, causal) - head)
    share = 0.5 * (1 + 1 / sequence) if causal else 1.0
    return tokens * model.layers * share * layer_attention_flops_per_token(model, sequence)


def hardware_flops(
    model: Transformer, sequence: int, batch: int, recompute: str = "none", causal: bool = False
) -> float:
    """FLOP that the hardware runs in one step: model FLOP plus recomputation. HFU divides this.

    Full recomputation of a GPT gives SC21's ``96 B s L h^2 (1 + s/(6h) + V/(16 L h))``.

    Raises:
        ValueError: as in :func:`model_flops` and :func:`recomputed_flops`.
    """
    return model_flops(model, sequence, batch, causal) + recomputed_flops(
        model, sequence, batch, recompute, causal
    )


FLOPS_PER_PARAMETER_AND_TOKEN = 6
"""Forward 2, a multiplication and an addition; backward twice as many."""


def training_flops(params: float, tokens: float) -> float:
    """FLOP of forward and backward over ``tokens`` tokens: ``6 Ψ D``, the estimate that needs no shape.

    It leaves the attention scores out (:func:`model_flops` has them) and counts every parameter as a weight of a matrix
    product. With experts, Ψ are the active parameters.

    Args:
        params: Ψ.
        tokens: ``D``.

    Raises:
        ValueError: a number is not above 0.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (arXiv 2001.08361), section 2.1.
    """
    return FLOPS_PER_PARAMETER_AND_TOKEN * positive("params", params) * positive("tokens", tokens, "tokens")


def sc21_training_days(params: float, tokens: float, ranks: int, flops_per_rank: float) -> float:
    """Days to train: ``8 T P / (n X)``, with X the achieved FLOP/s per GPU including recomputation.

    Raises:
        ValueError: a size is out of range.

    Source: SC21 (arXiv 2104.04473), equation 4. The 8 holds with full recomputation; without it is 6.
    """
    return 8.0 * tokens * params / (count("ranks", ranks) * flops_per_rank) / 86_400.0


# ---------------------------------------------------------------- Hugging Face configs

_GPT_STYLE = ("gpt2", "opt", "gpt_neox", "gpt_bigcode")
_LLAMA_STYLE = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3")

HF_MODEL_TYPES = _GPT_STYLE + _LLAMA_STYLE


def _field(config: Any, *names: str, default: Any = None) -> Any:
    for key in names:
        if key in config and config[key] is not None:
            return config[key]
    if default is None:
        raise ValueError(f"config must have {' or '.join(names)}; it has {', '.join(sorted(config))}")
    return default


def from_hf_config(config: Any, name: str | None = None) -> Transformer:
    """A :class:`Transformer` from the fields of a Hugging Face ``config.json``, already read into a dict.

    Understands ``model_type`` gpt2, gpt_bigcode, opt, gpt_neox, llama, mistral, mixtral, qwen2, qwen3, qwen3_moe
    and phi3. Others are refused rather than guessed: their layers differ.

    Raises:
        ValueError: an unknown ``model_type``, or a field is missing or out of range.
    """
    if not hasattr(config, "keys"):
        raise ValueError(f"config must be a dict of config.json's fields, not {type(config).__name__}")
    kind = _field(config, "model_type")
    if kind not in HF_MODEL_TYPES:
        raise ValueError(
            f"model_type must be one of {', '.join(HF_MODEL_TYPES)}, not {kind!r}; "
            "for others give the sizes to shardlab.transformer.transformer"
        )
    label = name or str(config.get("_name_or_path") or kind)
    if kind in _GPT_STYLE:
        return _gpt_style(config, kind, label)
    return _llama_style(config, kind, label)


def _gpt_style(config: Any, kind: str, label: str) -> Transformer:
    hidden = _field(config, "n_embd", "hidden_size")
    heads = _field(config, "n_head", "num_attention_heads")
    if kind == "opt" and config.get("word_embed_proj_dim", hidden) != hidden:
        raise ValueError(
            f"word_embed_proj_dim must equal hidden_size = {hidden}, not {config['word_embed_proj_dim']}: "
            "the projection of OPT-350m is not modelled"
        )
    # OPT's position table starts with two rows that no token uses.
    offset = 2 if kind == "opt" else 0
    rotary = kind == "gpt_neox"
    return transformer(
        layers=_field(config, "n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=1 if config.get("multi_query") else heads,
        ffn=_field(config, "n_inner", "ffn_dim", "intermediate_size", default=4 * hidden),
        vocabulary=_field(config, "vocab_size"),
        positions=0 if rotary else _field(config, "n_positions", "max_position_embeddings") + offset,
        tied=bool(config.get("tie_word_embeddings", not rotary)),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        dropout=bool(_field(config, "resid_pdrop", "dropout", "hidden_dropout", default=0.0)),
        name=label,
        source="config.json, model_type " + kind,
    )


def _llama_style(config: Any, kind: str, label: str) -> Transformer:
    hidden = _field(config, "hidden_size")
    heads = _field(config, "num_attention_heads")
    experts, top_k, expert_ffn = 0, 0, 0
    ffn: int | None = None
    if kind == "mixtral":
        experts, top_k = _field(config, "num_local_experts"), _field(config, "num_experts_per_tok")
        expert_ffn = _field(config, "intermediate_size")
    elif kind == "qwen3_moe":
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
            raise ValueError(
                "mlp_only_layers and decoder_sparse_step must leave every layer with experts: mixed stacks are not modelled"
            )
        experts, top_k = _field(config, "num_experts"), _field(config, "num_experts_per_tok")
        expert_ffn = _field(config, "moe_intermediate_size")
    else:
        ffn = _field(config, "intermediate_size")
    attention_bias = bool(config.get("attention_bias", kind == "qwen2"))
    return transformer(
        layers=_field(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_field(config, "num_key_value_heads", default=heads),
        head_dim=config.get("head_dim"),
        ffn=ffn,
        vocabulary=_field(config, "vocab_size"),
        gated=True,
        tied=bool(config.get("tie_word_embeddings", False)),
        norm="rmsnorm",
        qkv_bias=attention_bias,
        output_bias=attention_bias and kind != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        experts=experts,
        top_k=top_k,
        expert_ffn=expert_ffn,
        name=label,
        source="config.json, model_type " + kind,
    )


# ---------------------------------------------------------------- presets

_SC21 = "Narayanan et al., SC21 (arXiv 2104.04473), Table 1"
_KORTHIKANTI = "Korthikanti et al. (arXiv 2205.05198), Table 3"
_GPT3 = "Brown et al., GPT-3 (arXiv 2005.14165), Table 2.1; vocabulary padded to 51,200 as in SC21"
_LLAMA2 = "Touvron et al., Llama 2 (arXiv 2307.09288); sizes as in the published config.json"
_LLAMA3 = "Llama 3 herd (arXiv 2407.21783), Table 3"
_MIXTRAL = "Jiang et al., Mixtral of Experts (arXiv 2401.04088), Table 1"

_GPT_PRESETS = (
    # name, layers, hidden, heads, vocabulary, source
    ("gpt2-xl", 48, 1600, 25, 50_257, "Radford et al., GPT-2 (2019), Table 2; positions 1024"),
    ("gpt3-175b", 96, 12_288, 96, 51_200, _GPT3),
    (
        "megascale-175b",
        96,
        12_288,
        128,
        64_000,
        "Jiang et al., MegaScale (arXiv 2402.15627), Table 1, section 6.1",
    ),
    (
        "megascale-530b",
        105,
        20_480,
        160,
        64_000,
        "Jiang et al., MegaScale (arXiv 2402.15627), Table 1, section 6.1",
    ),
    ("sc21-1.7b", 24, 2304, 24, 51_200, _SC21),
    ("sc21-3.6b", 30, 3072, 32, 51_200, _SC21),
    ("sc21-7.5b", 36, 4096, 32, 51_200, _SC21),
    ("sc21-18.4b", 40, 6144, 48, 51_200, _SC21),
    ("sc21-39.1b", 48, 8192, 64, 51_200, _SC21),
    ("sc21-76.1b", 60, 10_240, 80, 51_200, _SC21),
    ("sc21-145.6b", 80, 12_288, 96, 51_200, _SC21),
    ("sc21-310.1b", 96, 16_384, 128, 51_200, _SC21),
    ("mt-nlg-530b", 105, 20_480, 128, 51_200, _SC21 + "; Smith et al. (arXiv 2201.11990)"),
    ("sc21-1008b", 128, 25_600, 160, 51_200, _SC21),
    ("korthikanti-22b", 48, 6144, 64, 51_200, _KORTHIKANTI),
    ("korthikanti-175b", 96, 12_288, 96, 51_200, _KORTHIKANTI),
    ("korthikanti-530b", 105, 20_480, 128, 51_200, _KORTHIKANTI),
    ("korthikanti-1t", 128, 25_600, 160, 51_200, _KORTHIKANTI),
)

_LLAMA_PRESETS = (
    # name, layers, hidden, heads, kv heads, ffn, vocabulary, source
    ("llama2-7b", 32, 4096, 32, 32, 11_008, 32_000, _LLAMA2),
    ("llama2-13b", 40, 5120, 40, 40, 13_824, 32_000, _LLAMA2),
    ("llama2-70b", 80, 8192, 64, 8, 28_672, 32_000, _LLAMA2),
    ("llama3-8b", 32, 4096, 32, 8, 14_336, 128_256, _LLAMA3),
    ("llama3-70b", 80, 8192, 64, 8, 28_672, 128_256, _LLAMA3),
    ("llama3-405b", 126, 16_384, 128, 8, 53_248, 128_256, _LLAMA3),
)

PRESETS = (
    tuple([row[0] for row in _GPT_PRESETS]) + tuple([row[0] for row in _LLAMA_PRESETS]) + ("mixtral-8x7b",)
)


def preset(name: str) -> Transformer:
    """A published model by name (one of :data:`PRESETS`), with its source.

    Raises:
        ValueError: no preset has that name (the message lists all).
    """
    key = choice("name", name, PRESETS)
    for label, layers, hidden, heads, words, origin in _GPT_PRESETS:
        if label == key:
            positions = 1024 if key == "gpt2-xl" else 2048
            return gpt(layers, hidden, heads, words, positions=positions, name=label, source=origin)
    for label, layers, hidden, heads, kv_heads, ffn, words, origin in _LLAMA_PRESETS:
        if label == key:
            return llama(layers, hidden, heads, kv_heads, ffn, words, name=label, source=origin)
    return transformer(
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        vocabulary=32_000,
        gated=True,
        tied=False,
        norm="rmsnorm",
        experts=8,
        top_k=2,
        expert_ffn=14_336,
        name="mixtral-8x7b",
        source=_MIXTRAL,
    )

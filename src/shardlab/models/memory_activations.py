"""Activations: what one layer and one pipeline stage keep from the forward to the backward pass, in bytes.

Symbols: s sequence (tokens), b micro-batch (sequences), h hidden width, a attention heads, d head width, g
key/value heads, f width of the MLP, L layers, V vocabulary, t tensor-parallel ranks, c context-parallel ranks,
p pipeline stages, v chunks (virtual stages) per pipeline rank, m micro-batches, e bytes of one element.

Functions whose names end in ``_core`` take plain numbers, check nothing and return plain numbers: they serve
search loops whose arguments were checked once. The itemised functions are built on them.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, positive
from shardlab.models.context import local_kv_heads, tokens_per_rank
from shardlab.models.pipeline_schedules import checked_sizes, placement_of

# ---------------------------------------------------------------- activations of one layer

RECOMPUTATIONS = ("none", "selective", "full")


def layer_parts_core(
    tokens: float,
    keys: float,
    hidden: float,
    query: float,
    key_value: float,
    mlp_saved: float,
    heads: float,
    tensor_parallel: float,
    sequence_parallel: bool,
    flash_attention: bool,
    dropout: bool,
    element_bytes: float,
    routing: float,
) -> tuple[float, float, float, float, float, float, float]:
    """The seven parts of one layer's activations without recomputation, unchecked; see :func:`layer_activations`.

    Args:
        tokens: b s / c, tokens of one micro-batch on this rank.
        keys: s, keys that a query meets.
        query, key_value: widths a d and g d.
        mlp_saved: summed width of the tensors that the MLP keeps, :func:`mlp_saved_width`.
        routing: bytes per token that expert routing adds, :func:`routing_bytes`; 0 for a dense layer.

    Returns:
        Bytes of (norm inputs, attention input, q k v, scores, attention output, MLP, dropout masks).
    """
    # What tensor parallelism leaves whole, sequence parallelism splits along the tokens.
    whole = tokens / tensor_parallel if sequence_parallel else tokens
    split = tokens / tensor_parallel
    wide = whole * element_bytes * hidden
    if flash_attention:
        scores = 4.0 * split * heads
    else:
        scores = split * heads * keys * (2.0 * element_bytes + 1.0 if dropout else element_bytes)
    return (
        2.0 * wide,
        wide,
        split * element_bytes * (query + 2.0 * key_value),
        scores,
        split * element_bytes * query,
        wide + split * element_bytes * mlp_saved + whole * routing,
        2.0 * whole * hidden if dropout else 0.0,
    )


def layer_core(
    tokens: float,
    keys: float,
    hidden: float,
    query: float,
    key_value: float,
    mlp_saved: float,
    heads: float,
    tensor_parallel: float,
    sequence_parallel: bool,
    flash_attention: bool,
    dropout: bool,
    element_bytes: float,
    routing: float,
    recompute: str,
) -> tuple[float, float]:
    """One layer's bytes (kept until the backward pass, made anew during it), unchecked; see :func:`layer_activations`."""
    norms, attention, qkv, scores, output, mlp, masks = layer_parts_core(
        tokens,
        keys,
        hidden,
        query,
        key_value,
        mlp_saved,
        heads,
        tensor_parallel,
        sequence_parallel,
        flash_attention,
        dropout,
        element_bytes,
        routing,
    )
    everything = norms + attention + qkv + scores + output + mlp + masks
    if recompute == "none":
        return everything, 0.0
    if recompute == "full":
        kept = element_bytes * hidden * (tokens / tensor_parallel if sequence_parallel else tokens)
        return kept, everything - kept
    if flash_attention:
        return everything, 0.0
    return everything - scores, scores


@dataclass(frozen=True)
class LayerActivations:
    """Bytes of one layer's activations for one micro-batch on one rank.

    Attributes:
        norm_inputs: inputs of the two normalisations.
        attention_input: the input shared by the q, k and v projections.
        query_key_value: q, k and v.
        scores: softmax output, its dropout mask and the dropped-out copy; or flash attention's log-sum-exp.
        attention_output: the input of the output projection.
        mlp: input and inner tensors of the MLP (with experts: of the routed copies too).
        dropout_masks: the two one-byte masks on the residual path.
        kept_bytes: what stays from the forward to the backward pass under ``recompute``.
        recomputed_bytes: what the backward pass makes anew while it works on this layer.
        recompute: ``"none"``, ``"selective"`` (the scores) or ``"full"`` (all but the layer's input).
    """

    norm_inputs: float
    attention_input: float
    query_key_value: float
    scores: float
    attention_output: float
    mlp: float
    dropout_masks: float
    kept_bytes: float
    recomputed_bytes: float
    recompute: str

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """Pairs (label, bytes) before recomputation."""
        return (
            ("norm inputs", self.norm_inputs),
            ("attention input", self.attention_input),
            ("q, k, v", self.query_key_value),
            ("attention scores", self.scores),
            ("attention output", self.attention_output),
            ("MLP", self.mlp),
            ("dropout masks", self.dropout_masks),
        )


def _divides(part_name: str, part: int, whole_name: str, whole: int, why: str) -> None:
    if whole % part:
        raise ValueError(f"{whole_name} must be divisible by {part_name} = {part} ({why}), not {whole}")


def mlp_saved_width(
    ffn: int,
    gated: bool = False,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    capacity_factor: float = 1.0,
) -> float:
    """Summed width of the inner tensors that one token's MLP keeps for the backward pass, in elements.

    A plain MLP keeps its two inner tensors (before and after the activation): ``2 f``. A gated MLP
    (SwiGLU) keeps gate, up and their product, the input of the down projection: ``3 f`` when the activation is
    fused and recomputed from the gate, as Megatron's fused SwiGLU does (4 f unfused). With experts,
    ``top_k * capacity_factor`` copies of the token do the same at ``expert_ffn``, beside ``ffn`` of a shared
    expert.

    Raises:
        ValueError: a size is out of range, or ``top_k`` exceeds ``experts``.

    Source: Korthikanti et al. (arXiv 2205.05198), section 4.1, MLP; the gated and routed forms are derived here.
    """
    tensors = 3.0 if gated else 2.0
    n_experts = count("experts", experts, least=0)
    width = count("ffn", ffn, least=0 if n_experts else 1)
    if not n_experts:
        return tensors * width
    chosen = count("top_k", top_k, least=1, most=n_experts)
    routed = chosen * positive("capacity_factor", capacity_factor)
    return tensors * (width + routed * count("expert_ffn", expert_ffn))


def routing_bytes(
    hidden: int, experts: int, top_k: int, capacity_factor: float = 1.0, element_bytes: float = 2.0
) -> float:
    """Bytes per token that expert routing keeps beside the experts' inner tensors.

    ``e h (top_k capacity_factor + top_k) + 4 experts``: the dispatched copies (inputs of the experts), the
    experts' outputs (the gradient of their weighted sum needs them) and fp32 router probabilities. Routing is
    taken as balanced: a rank processes as many copies as it sends.

    Raises:
        ValueError: a size is out of range.

    Derived here from the tensors that the backward pass of a routed MLP needs.
    """
    width = count("hidden", hidden)
    n_experts = count("experts", experts)
    chosen = count("top_k", top_k, most=n_experts)
    sent = chosen * positive("capacity_factor", capacity_factor)
    return positive("element_bytes", element_bytes, "bytes") * width * (sent + chosen) + 4.0 * n_experts


def layer_activations(
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    context_parallel: int = 1,
    recompute: str = "none",
    flash_attention: bool = False,
    dropout: bool = True,
    element_bytes: float = 2.0,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    capacity_factor: float = 1.0,
) -> LayerActivations:
    """Activation bytes of one transformer layer for one micro-batch on one rank.

    Per token, with e bytes per element, and h = a d = g d, f = 4h, e = 2 giving Korthikanti's Table 2:

    =================  ===================================  ======================  ==========
    part               bytes per token                      tensor parallel         h = a d
    =================  ===================================  ======================  ==========
    norm inputs        2 e h                                whole                   4 h
    attention input    e h                                  whole                   2 h
    q, k, v            e (a d + 2 g d)                      1/t                     6 h
    scores             (2e + 1) a s (e a s, no dropout)     1/t                     5 a s
    attention output   e a d                                1/t                     2 h
    MLP input          e h                                  whole                   2 h
    MLP inner          2 e f, gated 3 e f                   1/t                     16 h
    dropout masks      2 h (none without dropout)           whole                   2 h
    =================  ===================================  ======================  ==========

    Sum ``s b h (34 + 5 a s / h)`` without parallelism; ``s b h (10 + 24/t + 5 a s/(h t))`` with tensor
    parallelism; sequence parallelism splits the whole parts too: ``s b h / t (34 + 5 a s/h)``. Selective
    recomputation drops the scores; full recomputation keeps the layer's input only (2 s b h, split by t with
    sequence parallelism). Flash attention stores an fp32 log-sum-exp per head and token, 4 a s b / t, instead
    of the scores. Grouped-query attention shrinks k and v to g heads (at least one per rank); context
    parallelism divides the tokens by c.

    Args:
        sequence: s, tokens of one sequence (all context-parallel ranks together).
        micro_batch: b, sequences.
        hidden: ``h``.
        heads: a, query heads.
        ffn: f, width of the MLP; 4 h by default.
        kv_heads: g; a by default.
        head_dim: d; h / a by default.
        gated: True for SwiGLU and the like.
        tensor_parallel: ``t``.
        sequence_parallel: split norms, residuals and layer inputs along the tokens over the t ranks.
        context_parallel: ``c``.
        recompute: ``"none"``, ``"selective"`` or ``"full"``.
        flash_attention: True when the scores are never stored.
        dropout: True where the model trains with dropout (GPT-3 did, Llama does not).
        element_bytes: e; 2 for bf16 or fp16.
        experts, top_k, expert_ffn, capacity_factor: a routed MLP (0 experts is a dense layer); ``ffn`` is then the
            width of a shared expert, none by default. See :func:`mlp_saved_width` and :func:`routing_bytes`.

    Raises:
        ValueError: a size is out of range or does not divide.

    Source: Korthikanti et al., Reducing Activation Recomputation (arXiv 2205.05198), section 4, equations 1
    to 4 and Table 2; the forms for f, g, d, gates and no dropout follow from the same list of saved tensors.
    """
    kind = choice("recompute", recompute, RECOMPUTATIONS)
    length = count("sequence", sequence)
    batch = count("micro_batch", micro_batch)
    width = count("hidden", hidden)
    n_heads = count("heads", heads)
    n_kv = n_heads if kv_heads is None else count("kv_heads", kv_heads, most=n_heads)
    ranks = count("tensor_parallel", tensor_parallel)
    local = tokens_per_rank(length, context_parallel)
    if head_dim is None:
        _divides(
            "heads", n_heads, "hidden", width, "each head takes hidden / heads columns; or give head_dim"
        )
        per_head = width // n_heads
    else:
        per_head = count("head_dim", head_dim)
    _divides("kv_heads", n_kv, "heads", n_heads, "each key/value head serves the same number of query heads")
    _divides("tensor_parallel", ranks, "heads", n_heads, "whole heads are dealt to the tensor-parallel ranks")
    if sequence_parallel:
        share = "sequence parallelism splits a rank's tokens over the tensor-parallel ranks"
        _divides("tensor_parallel", ranks, "sequence / context_parallel", local, share)
    n_bytes = positive("element_bytes", element_bytes, "bytes")
    inner = (0 if experts else 4 * width) if ffn is None else ffn
    sizes = (
        float(batch * local),
        float(length),
        float(width),
        float(n_heads * per_head),
        float(local_kv_heads(n_kv, ranks) * ranks * per_head),
        mlp_saved_width(inner, gated, experts, top_k, expert_ffn, capacity_factor),
        float(n_heads),
        ranks,
        sequence_parallel,
        flash_attention,
        dropout,
        n_bytes,
        routing_bytes(width, experts, top_k, capacity_factor, n_bytes) if experts else 0.0,
    )
    norms, attention, qkv, scores, output, mlp, masks = layer_parts_core(*sizes)
    kept, remade = layer_core(*sizes, kind)
    return LayerActivations(
        norm_inputs=norms,
        attention_input=attention,
        query_key_value=qkv,
        scores=scores,
        attention_output=output,
        mlp=mlp,
        dropout_masks=masks,
        kept_bytes=kept,
        recomputed_bytes=remade,
        recompute=kind,
    )


def selective_saving(sequence: int, hidden: int, heads: int) -> float:
    """Share of activations that selective recomputation saves with sequence parallelism: ``(5as/h)/(34 + 5as/h)``.

    Raises:
        ValueError: a size is not a whole number from 1.

    Source: Korthikanti et al. (arXiv 2205.05198), section 5 (70 % for GPT-3, 65 % for MT-NLG).
    """
    scores = 5 * count("heads", heads) * count("sequence", sequence) / count("hidden", hidden)
    return scores / (34 + scores)


# ---------------------------------------------------------------- activations of one pipeline stage


def in_flight_core(schedule: str, stages: int, rank: int, micro_batches: int, chunks: int) -> float:
    """In-flight micro-batches, unchecked; see :func:`in_flight_micro_batches`."""
    if schedule == "gpipe":
        return float(micro_batches)
    if schedule == "1f1b" or (schedule == "interleaved-1f1b" and chunks == 1):
        held = float(stages - rank)
    elif schedule == "interleaved-1f1b":
        held = (2 * (stages - rank - 1) + (chunks - 1) * stages + 1) / chunks
    elif schedule == "zb-h2":
        held = 2.0 * stages - 1.0
    elif schedule == "dualpipe-v":
        held = stages + 0.5
    else:
        held = float(stages)
    return held if held < micro_batches else float(micro_batches)


def in_flight_micro_batches(
    schedule: str, stages: int, rank: int, micro_batches: int, chunks: int = 1
) -> float:
    """Most micro-batches whose activations one pipeline rank holds at once, in units of all its layers.

    gpipe m; 1f1b ``p - rank``; interleaved-1f1b ``(2 (p-rank-1) + (v-1) p + 1) / v``, which is Korthikanti's
    ``p (1 + (p-1)/(p v))`` on rank 0; zb-h1 and zb-v p; zb-h2 ``2p - 1``; dualpipe-v ``p + 1/2`` (2p+1 halves).
    Never more than m. The zero-bubble values count a micro-batch as held until its weight gradient is done
    and are the same on every rank: upper bounds.

    Args:
        schedule: a name in ``shardlab.models.pipeline_schedules.SCHEDULES``.
        stages: p, pipeline ranks.
        rank: 0 (first) to p-1.
        micro_batches: m per optimizer step and pipeline.
        chunks: v of interleaved-1f1b; zb-v and dualpipe-v have 2 by construction.

    Raises:
        ValueError: an unknown schedule or a number out of range.

    Source: Huang et al., GPipe (arXiv 1811.06965); Narayanan et al. (arXiv 2104.04473), section 2.2;
    Korthikanti et al. (arXiv 2205.05198), section 4.2.3; Qi et al., Zero Bubble (arXiv 2401.10241), Table 2;
    Qi et al., controllable memory (arXiv 2405.15362) for zb-v; DualPipe README for dualpipe-v.
    """
    kind, ranks, batches, pieces = checked_sizes(schedule, stages, micro_batches, chunks)
    place = count("rank", rank, least=0, most=ranks - 1)
    return in_flight_core(kind, ranks, place, batches, pieces)


def head_core(
    tokens: float,
    hidden: float,
    vocabulary: float,
    tensor_parallel: float,
    sequence_parallel: bool,
    logit_bytes: float,
) -> float:
    """Activation bytes of final norm, output layer and logits for one micro-batch, unchecked.

    ``4 s b h / t (1 + V/h)`` with sequence parallelism and 4-byte logits.
    """
    whole = tokens / tensor_parallel if sequence_parallel else tokens
    return 4.0 * whole * hidden + tokens * vocabulary * logit_bytes / tensor_parallel


@dataclass(frozen=True)
class StageActivations:
    """Activation bytes of one pipeline rank at its peak.

    Attributes:
        layers: activations kept for all in-flight micro-batches, all layers of the rank.
        embedding: the dropout mask after the embedding (first stage only).
        head: final norm, output layer and logits (last stage only).
        recomputed: one layer's recomputed activations, alive while the backward pass works on it.
        in_flight: micro-batches held at once, in units of the rank's layers.
        layers_on_rank: transformer layers of this rank.
        layer: one layer, one micro-batch.
    """

    layers: float
    embedding: float
    head: float
    recomputed: float
    in_flight: float
    layers_on_rank: float
    layer: LayerActivations

    @property
    def items(self) -> tuple[tuple[str, float], ...]:
        """Pairs (label, bytes)."""
        return (
            ("layers", self.layers),
            ("embedding", self.embedding),
            ("output head and logits", self.head),
            ("one recomputed layer", self.recomputed),
        )

    @property
    def total_bytes(self) -> float:
        """All items together."""
        total = 0.0
        for _, n_bytes in self.items:
            total += n_bytes
        return total


def stage_activations(
    layers: int,
    sequence: int,
    micro_batch: int,
    hidden: int,
    heads: int,
    vocabulary: int = 0,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = False,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
    context_parallel: int = 1,
    pipeline_parallel: int = 1,
    rank: int = 0,
    micro_batches: int | None = None,
    schedule: str = "1f1b",
    chunks: int = 1,
    recompute: str = "none",
    flash_attention: bool = False,
    dropout: bool = True,
    element_bytes: float = 2.0,
    experts: int = 0,
    top_k: int = 0,
    expert_ffn: int = 0,
    capacity_factor: float = 1.0,
    logit_bytes: float = 4.0,
) -> StageActivations:
    """Activation bytes on one pipeline rank at its peak: layers in flight, embedding, logits, recomputed layer.

    ``in_flight * L/p * layer + (rank 0) s b h in_flight / t + (last rank) 4 s b h/t (1 + V/h)``.

    Args:
        layers: L of the whole model, a multiple of ``pipeline_parallel * chunks``.
        vocabulary: V; 0 leaves the output head out.
        pipeline_parallel: ``p``.
        rank: 0 to p-1.
        micro_batches: m per optimizer step; p by default.
        schedule, chunks: as in :func:`in_flight_micro_batches`.
        logit_bytes: bytes per logit kept for the backward pass: 4 in the paper (fp32 logits); an unfused
            cross-entropy that keeps 16-bit logits, an fp32 copy and its softmax takes about 10.
        others: as in :func:`layer_activations`.

    Raises:
        ValueError: a size is out of range, or layers that stages x chunks do not divide.

    Source: Korthikanti et al. (arXiv 2205.05198), section 4.2.3 equation 5 and section 4.3. The recomputed
    layer is added here: the paper counts only what is stored between the passes.
    """
    depth = count("layers", layers)
    stages = count("pipeline_parallel", pipeline_parallel)
    enough = stages if micro_batches is None else micro_batches
    kind, _, batches, pieces = checked_sizes(schedule, stages, enough, chunks)
    place = count("rank", rank, least=0, most=stages - 1)
    _divides(
        "pipeline_parallel x chunks",
        stages * pieces,
        "layers",
        depth,
        "every chunk gets the same number of layers",
    )
    words = count("vocabulary", vocabulary, least=0)
    layer = layer_activations(
        sequence,
        micro_batch,
        hidden,
        heads,
        ffn=ffn,
        kv_heads=kv_heads,
        head_dim=head_dim,
        gated=gated,
        tensor_parallel=tensor_parallel,
        sequence_parallel=sequence_parallel,
        context_parallel=context_parallel,
        recompute=recompute,
        flash_attention=flash_attention,
        dropout=dropout,
        element_bytes=element_bytes,
        experts=experts,
        top_k=top_k,
        expert_ffn=expert_ffn,
        capacity_factor=capacity_factor,
    )
    held = in_flight_core(kind, stages, place, batches, pieces)
    tokens = float(micro_batch * tokens_per_rank(sequence, context_parallel))
    whole = tokens / tensor_parallel if sequence_parallel else tokens
    embedding = whole * hidden * held if place == 0 and dropout else 0.0
    head = 0.0
    # A V-shaped schedule brings the last chunk back to rank 0.
    if words and place == (0 if placement_of(kind) == "v" else stages - 1):
        per_micro_batch = head_core(
            tokens,
            hidden,
            words,
            tensor_parallel,
            sequence_parallel,
            positive("logit_bytes", logit_bytes, "bytes"),
        )
        # Only GPipe runs all forward passes before the first backward pass frees its logits.
        head = per_micro_batch * (held if kind == "gpipe" else 1.0)
    return StageActivations(
        layers=held * depth / stages * layer.kept_bytes,
        embedding=embedding,
        head=head,
        recomputed=layer.recomputed_bytes,
        in_flight=held,
        layers_on_rank=depth / stages,
        layer=layer,
    )

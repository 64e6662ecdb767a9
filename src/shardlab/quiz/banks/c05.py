"""C05, the quiz of chapter 05: how a matrix is cut over ranks, what a layer then sends and keeps, and over which link.

The answers rest on the count of Megatron-LM (four all-reduces per layer and micro-batch, six with full recomputation)
and on Korthikanti's activations per layer; both are computed by ``shardlab.models``.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.memory_activations import layer_activations
from shardlab.models.tensor import (
    break_even_hidden,
    check_split,
    communication_compute_ratio,
    layer_collectives,
    layer_sent_bytes,
)
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Table,
    Variant,
    choice,
    decimal,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, figure, megabytes, ms, percent, ranking, share, times, whole
from shardlab.units import format_bandwidth, significant

SEED = 505


def build(seed: int = SEED) -> Quiz:
    """The chapter's GPT-3 layer first, then five fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c05",
        title="How is a matrix cut, and what does a layer pay for it?",
        question="What does a tensor-parallel rank hold, keep and send, and which link can carry it?",
        variants=(
            _chapter(),
            _cut(seed),
            _activations(seed),
            _links(seed),
            _heads(seed),
            _measured(seed),
        ),
        values={},
        seed=seed,
    )


def _kept(s: int, b: int, h: int, a: int, t: int, split: bool = False, recompute: str = "none") -> float:
    """Bytes of one layer's activations that a rank keeps; ``split`` is sequence parallelism."""
    return layer_activations(
        s, b, h, a, tensor_parallel=t, sequence_parallel=split, recompute=recompute
    ).kept_bytes


def _chapter() -> Variant:
    t, h, s, a = 8, 12288, 2048, 96
    plain, full = layer_sent_bytes(s, 1, h, t), layer_sent_bytes(s, 1, h, t, "full")
    alone, tensor = _kept(s, 1, h, a, 1), _kept(s, 1, h, a, t)
    # Any rate and link will do: only how the ratio changes is asked.
    rate, link = 270e12, 177e9
    base = communication_compute_ratio(h, s, t, rate, link)
    changed = {
        "link": communication_compute_ratio(h, s, t, rate, 2 * link) / base,
        "width": communication_compute_ratio(2 * h, s, t, rate, link) / base,
        "sequence": communication_compute_ratio(h, 2 * s, t, rate, link) / base,
        "ranks": communication_compute_ratio(h, s, 2 * t, rate, link) / base,
        "gpu": communication_compute_ratio(h, s, t, 2 * rate, link) / base,
    }
    values = {
        "t": str(t),
        "h": str(h),
        "s": str(s),
        "a": str(a),
        "buffer": megabytes(2.0 * s * h),
        "calls": str(layer_collectives(recompute="full").all_reduce),
        "plain": megabytes(plain),
        "full": megabytes(full),
        "alone": megabytes(alone),
        "tensor": megabytes(tensor),
        "split": megabytes(_kept(s, 1, h, a, t, True)),
        "less": times(alone / tensor),
        "by_link": decimal(changed["link"], 2),
        "by_width": decimal(changed["width"], 2),
        "by_sequence": decimal(changed["sequence"], 2),
        "by_ranks": decimal(changed["ranks"], 2),
        "by_gpu": decimal(changed["gpu"], 2),
    }
    return variant(
        id="chapter",
        title="A GPT-3 layer over eight ranks",
        scenario="One layer of GPT-3 is cut over {t} tensor-parallel ranks. A micro-batch is one sequence of {s} tokens, in bf16 (2 bytes a number); all-reduces go round a ring.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="h", meaning="hidden width", value="{h}"),
            Given(symbol="s", meaning="tokens of the micro-batch", value="{s}"),
            Given(symbol="a", meaning="attention heads", value="{a}"),
        ),
        values=values,
        parts=(
            figure(
                id="sent",
                prompt="You switch on full recomputation. How much does a rank now send for this layer and micro-batch?",
                key=full / 1e6,
                unit="MB",
                wrong=[
                    (plain / 1e6, "recompute-forgotten"),
                    (2 * plain / 1e6, "recompute-doubles"),
                    (full * t / (t - 1) / 1e6, "full-2p", "*t* ranks send (*t*−1)/*t* of it."),
                    (full / 2e6, "one-phase", "An all-reduce is a reduce-scatter *and* an all-gather."),
                    (full * t / 1e6, "whole-cluster"),
                ],
                solution=(
                    "Two all-reduces forward, two in the repeated forward pass, two backward: {calls}, each over *b*·*s*·*h* numbers, {buffer}.",
                    "A ring sends 2(*t*−1)/*t* of its buffer: {full}, where it was {plain}.",
                ),
            ),
            figure(
                id="kept",
                prompt="Without recomputation one rank alone keeps {alone} of activations for this layer. How many times less does each of the {t} ranks keep, without sequence parallelism?",
                key=alone / tensor,
                unit="×",
                wrong=[
                    (t, "activations-follow-weights"),
                    (tensor / alone, "inverted", "Turn it over: one rank over one of {t}."),
                    (1, "model-replicated", "The scores, q, k, v and the wide tensors of the MLP are split."),
                ],
                solution=(
                    "*s*·*b*·*h*·(10 + 24/*t* + 5·*a*·*s*/(*h*·*t*)) = {tensor}: {less} less.",
                    "Sequence parallelism splits the 10 as well: {split}.",
                ),
            ),
            several(
                id="whole",
                prompt="Which of these does every rank keep whole, without sequence parallelism?",
                options=(
                    right("norms", "the inputs of the norms", "A norm works on whole tokens, on every rank."),
                    right(
                        "inputs",
                        "the input of the attention block and of the MLP",
                        "Every rank multiplies the whole input by its own columns.",
                    ),
                    wrong(
                        "scores", "the attention scores", "split-part-whole", "Each rank has its own heads."
                    ),
                    wrong(
                        "wide",
                        "the MLP's tensor of width 4*h*",
                        "split-part-whole",
                        "Each rank has its own columns of it.",
                    ),
                    wrong("weights", "the weights of the MLP", "model-replicated"),
                ),
            ),
            several(
                id="lowers",
                prompt="Which of these lower the ratio of communication to compute by more than a quarter?",
                options=(
                    judged(
                        "link",
                        "twice the bandwidth",
                        changed["link"] < 0.75,
                        "It falls to {by_link} of what it was.",
                    ),
                    judged(
                        "width", "a layer twice as wide", changed["width"] < 0.75, "It falls to {by_width}."
                    ),
                    wrong("batch", "twice the micro-batch", "batch-cancels"),
                    wrong(
                        "sequence",
                        "sequences twice as long",
                        "batch-cancels",
                        "It falls to {by_sequence} only: attention's own products grow faster than the tokens, but they are a small part.",
                    ),
                    wrong("gpu", "GPUs that compute twice as fast", "inverted", "It rises to {by_gpu}."),
                    wrong("ranks", "twice as many ranks", "slices-send-less", "It rises to {by_ranks}."),
                ),
                solution=("*e*·*F*′·(*t*−1)/(9·*B*·(*h* + *s*/6)): neither *b* nor the depth is in it.",),
            ),
            open_question(
                id="explain",
                prompt="Why does a layer need two all-reduces forward and two backward, and why do they decide where the ranks may sit?",
                answer="A layer has two blocks, attention and MLP. In each the first matrix is cut by columns and the second by rows: columns give finished columns, which is what the rows need, "
                "and the rows give partial sums. So a block ends with one sum forward. Backward, transposed matrices swap the roles, and the sum stands at the block's start. That makes four all-reduces per layer "
                "and micro-batch, each over the whole activation of {buffer}. The next operation needs the result, so little of it hides: the link's speed counts in full, and *t* stays where the link is fast, "
                "which mostly means inside a node.",
                points=(
                    "Columns, then rows: one sum at the end of each block.",
                    "Backward the matrices are transposed: the sum moves to the start.",
                    "Every layer and micro-batch, over the whole activation, not over a slice.",
                    "On the critical path: so the fastest link; the node is a rule about links.",
                ),
            ),
        ),
    )


def _cut(seed: int) -> Variant:
    draw = Draw(seed, "c05/cut")
    h, f = draw.pick(
        ((4096, 12288), (4096, 14336), (5120, 20480), (6144, 15360), (6144, 24576), (8192, 24576))
    )
    t, s = draw.pick((2, 4, 8)), draw.pick((1024, 2048, 4096, 8192))
    weights, narrow, wide = 2.0 * 2 * h * f, 2.0 * s * h, 2.0 * s * f
    values = {
        "h": str(h),
        "f": str(f),
        "t": str(t),
        "s": str(s),
        "columns": str(f // t),
        "mine": megabytes(weights / t),
        "all": megabytes(weights),
        "narrow": megabytes(narrow),
        "wide": megabytes(wide),
        "larger": times(f / h),
    }
    return variant(
        id="cut",
        title="An MLP over {t} ranks",
        scenario="An MLP without a gate multiplies by A, which widens {h} numbers to {f}, applies GELU, and multiplies by B, which narrows them again. A is cut by columns and B by rows over {t} ranks. "
        "A micro-batch has {s} tokens; all numbers take 2 bytes.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="h", meaning="hidden width", value="{h}"),
            Given(symbol="f", meaning="width of the MLP", value="{f}"),
            Given(symbol="s", meaning="tokens of the micro-batch", value="{s}"),
        ),
        values=values,
        parts=(
            whole(
                id="columns",
                prompt="How many columns of A does a rank hold?",
                key=f // t,
                unit="columns",
                wrong=[
                    (h // t, "rows-for-columns", "A has {h} rows and {f} columns, and it is cut by columns."),
                    (f, "model-replicated"),
                    (f // t // t, "cut-twice", "A is cut once, in one direction."),
                ],
                solution=("{f} / {t} = {columns}; of B it holds as many rows.",),
            ),
            figure(
                id="weights",
                prompt="How much do both matrices take on one rank?",
                key=weights / t / 1e6,
                unit="MB",
                wrong=[
                    (weights / 1e6, "model-replicated"),
                    (weights / 2 / t / 1e6, "one-matrix"),
                    (weights / t / t / 1e6, "cut-twice"),
                ],
                solution=("2 matrices · {h} · {f} · 2 bytes = {all}, a share of 1/{t}: {mine}.",),
            ),
            figure(
                id="sum",
                prompt="How large is the buffer of the all-reduce in the forward pass?",
                key=narrow / 1e6,
                unit="MB",
                wrong=[
                    (wide / 1e6, "wide-for-narrow"),
                    (
                        narrow / t / 1e6,
                        "slices-send-less",
                        "Every rank has a partial sum of *every* number of the output.",
                    ),
                    (
                        wide / t / 1e6,
                        "wide-for-narrow",
                        "That is the rank's own part of the wide tensor. It is never sent.",
                    ),
                ],
                solution=("What is added up is the narrow output, whole: {s} · {h} · 2 bytes = {narrow}.",),
            ),
            figure(
                id="rows-first",
                prompt="A colleague cuts A by rows instead. How many times as large is the buffer that must be added up before GELU?",
                key=f / h,
                unit="×",
                wrong=[
                    (h / f, "inverted", "Turn it over: wide over narrow."),
                    (1, "wide-for-narrow", "Before GELU the tensor is {f} wide, not {h}."),
                    (
                        f / h / t,
                        "slices-send-less",
                        "Rows give a rank partial sums of the whole wide tensor.",
                    ),
                ],
                solution=("{wide} in place of {narrow}: {f} / {h} = {larger}.",),
            ),
            choice(
                id="skipped",
                prompt="The colleague leaves that sum out, applies GELU on every rank, and adds up at the end. What happens?",
                options=(
                    right(
                        "silent",
                        "The output is wrong, and no error is raised.",
                        "All shapes fit. GELU of a part is not a part of GELU.",
                    ),
                    wrong("same", "Nothing: the parts are added up at the end anyway.", "gelu-of-parts"),
                    wrong("shape", "An error: the shapes don't fit.", "framework-notices"),
                    wrong(
                        "gradient",
                        "The output is right, only the gradients are wrong.",
                        "gelu-of-parts",
                        "That is what a forgotten sum in the *backward* pass does.",
                    ),
                ),
            ),
        ),
    )


def _activations(seed: int) -> Variant:
    draw = Draw(seed, "c05/activations")
    h, a = draw.pick(((4096, 32), (5120, 40), (6144, 48), (8192, 64)))
    t, s, b = draw.pick((2, 4, 8)), draw.pick((2048, 4096, 8192)), draw.pick((1, 2, 4))

    def kept(ranks: int, split: bool = False, recompute: str = "selective") -> float:
        return _kept(s, b, h, a, ranks, split, recompute)

    tensor, both, everything = kept(t), kept(t, True), kept(t, True, "none")
    # What does not shrink is what is left for ever more ranks; the rest of one rank's bytes is split.
    copied = (t * tensor - kept(1)) / (t - 1)
    values = {
        "h": str(h),
        "a": str(a),
        "t": str(t),
        "s": str(s),
        "b": str(b),
        "alone": megabytes(kept(1)),
        "tensor": megabytes(tensor),
        "both": megabytes(both),
        "everything": megabytes(everything),
        "copied": megabytes(copied),
        "part": percent(copied / tensor),
        "scores": megabytes(everything - both),
    }
    return variant(
        id="activations",
        title="What a rank keeps of a layer",
        scenario="A GPT layer with dropout is cut over {t} tensor-parallel ranks, with selective recomputation: the attention scores are made anew in the backward pass. "
        "Without tensor parallelism it would keep 34·*s*·*b*·*h* bytes, {alone}.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="h", meaning="hidden width", value="{h}"),
            Given(symbol="a", meaning="attention heads", value="{a}"),
            Given(symbol="s", meaning="tokens of a sequence", value="{s}"),
            Given(symbol="b", meaning="sequences of a micro-batch", value="{b}"),
        ),
        values=values,
        parts=(
            figure(
                id="tensor",
                prompt="How much does a rank keep without sequence parallelism?",
                key=tensor / 1e6,
                unit="MB",
                wrong=[
                    (both / 1e6, "activations-follow-weights"),
                    (kept(1) / 1e6, "model-replicated", "What heads and columns make is split."),
                    (kept(t, False, "none") / 1e6, "scores-kept"),
                    (copied / 1e6, "split-part-forgotten"),
                    (tensor / b / 1e6, "one-sequence"),
                ],
                solution=("*s*·*b*·*h*·(10 + 24/{t}) = {tensor}.",),
            ),
            share(
                id="part",
                prompt="What share of that is the part that every rank keeps whole?",
                key=copied / tensor,
                wrong=[
                    (copied / kept(1), "wrong-whole", "That is its share of what one rank alone keeps."),
                    (1 - copied / tensor, "hidden-exposed", "That is the share of what is split."),
                    (1 / t, "activations-follow-weights"),
                ],
                solution=("10/(10 + 24/{t}) = {part}: {copied} of {tensor}.",),
            ),
            figure(
                id="everything",
                prompt="Sequence parallelism is switched on and recomputation off. How much does a rank keep now?",
                key=everything / 1e6,
                unit="MB",
                wrong=[
                    (both / 1e6, "scores-forgotten"),
                    (
                        kept(t, False, "none") / 1e6,
                        "activations-follow-weights",
                        "That is without sequence parallelism. With it the 10 is divided by *t*, too.",
                    ),
                    (kept(1, False, "none") / 1e6, "axis-forgotten", "That is one rank alone."),
                    (everything / b / 1e6, "one-sequence"),
                ],
                solution=(
                    "*s*·*b*·*h*/{t}·(34 + 5·*a*·*s*/*h*) = {everything}: {both}, and {scores} for the scores.",
                ),
            ),
            choice(
                id="price",
                prompt="What does sequence parallelism send in place of the four all-reduces?",
                options=(
                    right(
                        "same",
                        "Four reduce-scatters and four all-gathers: as many bytes.",
                        "An all-reduce is one after the other; the norm now stands between them. Two inputs that are no longer kept whole are gathered again beside the backward pass.",
                    ),
                    wrong(
                        "less",
                        "1/*t* of the bytes: each rank has only its own tokens.",
                        "sequence-saves-bytes",
                    ),
                    wrong(
                        "twice", "Twice the bytes: eight collectives in place of four.", "halves-as-wholes"
                    ),
                    wrong(
                        "ring",
                        "Keys and values, round a ring.",
                        "sequence-for-context",
                        "That is context parallelism. Here every rank gets the whole sequence back before it multiplies.",
                    ),
                ),
            ),
        ),
    )


def _links(seed: int) -> Variant:
    draw = Draw(seed, "c05/links")
    names = "ABCD"
    rate = 1e12 * draw.pick((180, 220, 270, 350, 420, 500))

    def ratios(layers: Any) -> list[float]:
        return [communication_compute_ratio(h, 2048, t, rate, link) for h, t, link in layers]

    def width(ranks: int, link: float) -> int:
        return break_even_hidden(2048, ranks, rate, link)

    def fits(drawn: Any) -> bool:
        found, (_, t, link) = ratios(drawn), drawn[0]
        # Clear of one another, of next to nothing and of next to everything; 2 ranks may need hardly any width.
        return (
            apart(found, 1.15)
            and min(found) > 0.03
            and max(found) < 5
            and width(2 if t != 2 else 4, link) > 400
        )

    layers = draw.until(
        lambda: [
            (
                draw.pick((2048, 3072, 4096, 6144, 8192, 12288)),
                draw.pick((2, 4, 8)),
                1e9 * draw.pick((25, 50, 150, 200, 300, 400)),
            )
            for _ in names
        ],
        fits,
    )
    found = ratios(layers)
    _, t, link = layers[0]
    other = draw.pick([each for each in (2, 4, 8) if each != t])
    wide = width(other, link)
    values = {
        "rate": significant(rate / 1e12),
        "t": str(t),
        "ratio": decimal(found[0]),
        "efficiency": percent(1 / (1 + found[0])),
        "other": str(other),
        "width": str(wide),
        "tokens": "2048",
    }
    for name, value in zip(names, found):
        values[name] = decimal(value) + "×"
    return variant(
        id="links",
        title="Four layers, four links",
        scenario="Four GPT layers run on sequences of {tokens} tokens in bf16 (2 bytes a number). A rank computes {rate} TFLOP/s. "
        "Per token and rank a layer computes 72·*h*·(*h* + *s*/6)/*t* FLOP and sends 16·*h*·(*t*−1)/*t* bytes, both passes together; nothing overlaps.",
        values=values,
        table=Table(
            caption="Four tensor-parallel layers",
            columns=("layer", "hidden width", "ranks", "GB/s per rank and direction"),
            rows=tuple(
                [(name, str(row[0]), str(row[1]), f"{row[2] / 1e9:.0f}") for name, row in zip(names, layers)]
            ),
        ),
        parts=(
            ranking(
                id="order",
                prompt="Put the layers in order of communication over compute.",
                first="least communication",
                last="most communication",
                rows=[
                    (value, name.lower(), "layer " + name, "{" + name + "}")
                    for name, value in zip(names, found)
                ],
                start=draw,
                solution=("2·*F*′·(*t*−1)/(9·*B*·(*h* + *s*/6)) for each.",),
            ),
            share(
                id="efficiency",
                prompt="What share of the time does layer A compute?",
                key=1 / (1 + found[0]),
                points=1.0,
                wrong=[
                    (
                        1 - found[0],
                        "share-of-step",
                        "Computing 1 and sending {ratio}, it computes 1/(1 + {ratio}).",
                    ),
                    (found[0] / (1 + found[0]), "hidden-exposed", "That is the share in which it sends."),
                    (1 / (1 + 8 * found[0]), "bits-for-bytes"),
                    (1 / (1 + found[0] / 2), "forward-only"),
                    (1 / t, "whole-cluster", "All ranks compute at the same time."),
                ],
                solution=("Communication is {ratio} of compute: 1/(1 + {ratio}) = {efficiency}.",),
            ),
            figure(
                id="width",
                prompt="Over the link of layer A, how many numbers wide must a layer on {other} ranks be to compute as long as it communicates?",
                key=wide,
                unit="numbers",
                relative=0.02,
                digits=len(str(wide)),
                wrong=[
                    (width(t, link), "other-network", "That is on {t} ranks."),
                    (wide + 2048 / 6, "attention-forgotten"),
                    (width(other, link / 8), "bits-for-bytes"),
                    (
                        (wide + 2048 / 6) * other / (other - 1) - 2048 / 6,
                        "off-by-one",
                        "A ring of *t* ranks sends (*t*−1)/*t*: the formula has *t*−1, not *t*.",
                    ),
                ],
                solution=("*h* = 2·*F*′·({other}−1)/(9·*B*) − {tokens}/6 = {width}.",),
            ),
        ),
    )


def _fits(t: int, a: int, g: int) -> bool:
    """Whether a layer with ``a`` query and ``g`` key heads can be cut over ``t`` ranks."""
    try:
        check_split(t, a, g)
    except ValueError:
        return False
    return True


def _heads(seed: int) -> Variant:
    draw = Draw(seed, "c05/heads")
    a, g, many = draw.pick(
        (
            (24, 4, 12),
            (24, 4, 8),
            (32, 8, 16),
            (48, 6, 12),
            (48, 6, 24),
            (64, 8, 16),
            (64, 8, 32),
            (96, 8, 32),
        )
    )
    tried = [2, 3, 5, 8, many]
    tried = [t for index, t in enumerate(tried) if t not in tried[:index]]
    values = {"a": str(a), "g": str(g), "many": str(many), "each": str(a // many), "copies": str(many // g)}
    options = []
    for t in tried:
        key = f"why{t}"
        if a % t:
            slug, values[key] = "heads-are-cut", f"{a} query heads are no whole number for each of {t} ranks."
        elif _fits(t, a, g):
            slug = "copies-forbidden"
            values[key] = f"{a // t} query heads each, and " + (
                f"{g // t} key heads." if g >= t else f"each key head on {t // g} ranks."
            )
        else:
            slug, values[key] = "kv-heads-uneven", f"{g} key heads can't be dealt evenly to {t} ranks."
        options.append(judged(f"t{t}", f"{t} ranks", _fits(t, a, g), "{" + key + "}", slug))
    return variant(
        id="heads",
        title="{a} query heads, {g} key heads",
        scenario="A layer has grouped-query attention: {a} query heads share {g} heads of keys and values. It is cut by heads over tensor-parallel ranks.",
        given=(
            Given(symbol="a", meaning="query heads", value="{a}"),
            Given(symbol="g", meaning="key and value heads", value="{g}"),
        ),
        values=values,
        parts=(
            several(
                id="allowed",
                prompt="Over how many ranks can it be cut, with equal work and whole heads, if a rank may keep a copy of a key head?",
                options=tuple(options),
            ),
            whole(
                id="each",
                prompt="Over {many} ranks: how many query heads does a rank have?",
                key=a // many,
                unit="heads",
                wrong=[
                    (g, "other-term", "That is the number of key heads of the model."),
                    (a // g, "other-term", "That is how many query heads share a key head."),
                    (a, "model-replicated"),
                ],
                solution=("{a} / {many} = {each}.",),
            ),
            whole(
                id="copies",
                prompt="And on how many ranks does each key head lie?",
                key=many // g,
                unit="ranks",
                wrong=[
                    (1, "copies-forbidden", "There are fewer key heads than ranks."),
                    (a // g, "other-term", "That is how many query heads share a key head."),
                    (many, "model-replicated", "A rank keeps only the key head that its query heads use."),
                ],
                solution=("{many} ranks / {g} key heads = {copies}.",),
            ),
            choice(
                id="shrink",
                prompt="From {g} ranks to {many}: what happens to the weights of one rank that make keys and values?",
                options=(
                    right(
                        "stay",
                        "They stay as large: one key head for each rank.",
                        "Below one head nothing is cut; the other weights go on shrinking.",
                    ),
                    wrong(
                        "shrink",
                        "They shrink as all others do.",
                        "activations-follow-weights",
                        "One head is the least that a rank can have; all others do shrink.",
                    ),
                    wrong("gone", "Some ranks have none, and ask a neighbour.", "copies-forbidden"),
                ),
            ),
        ),
    )


# What a rank could be linked by, bytes/s in each direction.
_LINKS = (
    ("ethernet", "one port of 100 Gb/s", 12.5e9),
    ("port", "one port of 400 Gb/s", 50e9),
    ("nvlink3", "NVLink 3, 300 GB/s", 300e9),
    ("nvlink5", "NVLink 5, 900 GB/s", 900e9),
)


def _measured(seed: int) -> Variant:
    draw = Draw(seed, "c05/measured")
    t, h, s = draw.pick((2, 4, 8)), draw.pick((4096, 5120, 8192, 12288)), draw.pick((2048, 4096, 8192))
    place = draw.below(3)
    nominal = _LINKS[place][2]
    sent = layer_sent_bytes(s, 1, h, t)
    waited = sent / (nominal * draw.pick((0.72, 0.78, 0.84, 0.9)))
    compute = 72.0 * s * h * (h + s / 6) / t / (1e12 * draw.pick((250, 300, 350)))
    # What the reader sees is rounded: the key is what follows from that.
    compute_ms, total_ms = float(f"{1e3 * compute:.2f}"), float(f"{1e3 * (compute + waited):.2f}")
    implied = sent / (total_ms - compute_ms) * 1e3
    faster = _LINKS[place + 1][2] * implied / nominal
    after = compute_ms + 1e3 * sent / faster
    values = {
        "t": str(t),
        "h": str(h),
        "s": str(s),
        "compute": f"{compute_ms:.2f} ms",
        "total": f"{total_ms:.2f} ms",
        "wait": f"{total_ms - compute_ms:.2f} ms",
        "sent": megabytes(sent),
        "implied": significant(implied / 1e9, 3) + " GB/s",
        "faster": _LINKS[place + 1][1],
        "after": ms(after / 1e3) if after >= 10 else f"{after:.2f} ms",
        "gain": times(total_ms / after),
        "ratio": significant(faster / implied, 3),
    }
    options = []
    for index, (name, text, speed) in enumerate(_LINKS):
        need = f"need{index}"
        values[need] = format_bandwidth(speed)
        if index == place:
            options.append(
                right(name, text, "It can carry {" + need + "}; {implied} is what one expects of it.")
            )
        elif index < place:
            options.append(
                wrong(name, text, "too-slow", "It carries at most {" + need + "}, and {implied} were seen.")
            )
        else:
            options.append(
                wrong(name, text, "link-idle", "{implied} would be a small part of its {" + need + "}.")
            )
    return variant(
        id="measured",
        title="Which link was it?",
        scenario="A cluster is described as “fast”. A profile of one GPT layer over {t} tensor-parallel ranks, one sequence of {s} tokens in bf16, forward and backward: "
        "a rank multiplies for {compute}, and the layer takes {total}. Nothing overlaps, and there is no recomputation.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="h", meaning="hidden width", value="{h}"),
            Given(symbol="s", meaning="tokens of the micro-batch", value="{s}"),
        ),
        values=values,
        parts=(
            figure(
                id="implied",
                prompt="At what bandwidth did a rank send, if the all-reduces are rings and latency is small?",
                key=implied / 1e9,
                unit="GB/s",
                relative=0.02,
                wrong=[
                    (sent / total_ms / 1e6, "whole-step", "Take the multiplications off first."),
                    (
                        4 * 2.0 * s * h / (total_ms - compute_ms) / 1e6,
                        "algorithm-bandwidth",
                        "That is four buffers over the time. A ring sends 2(*t*−1)/*t* of each.",
                    ),
                    (implied / 2e9, "forward-only"),
                    (implied / 4e9, "one-all-reduce"),
                    (implied * 8 / 1e9, "bits-for-bytes"),
                ],
                solution=(
                    "A rank sends 8·*s*·*h*·2 bytes·({t}−1)/{t} = {sent}, and waits {total} − {compute} = {wait}: {implied}.",
                ),
            ),
            choice(id="link", prompt="Which link fits that?", options=tuple(options)),
            figure(
                id="gain",
                prompt="The job moves to a machine with {faster}, and gets the same share of it. How many times as fast is the layer?",
                key=total_ms / after,
                unit="×",
                relative=0.02,
                wrong=[
                    (
                        faster / implied,
                        "no-compute",
                        "The link is that much faster. The multiplications take as long as before.",
                    ),
                    (total_ms / compute_ms, "free-lunch", "A faster link still takes time."),
                    (after / total_ms, "inverted", "Turn it over: before over after."),
                ],
                solution=("The wait shrinks {ratio} times: {total} become {after}, {gain} as fast.",),
            ),
        ),
    )

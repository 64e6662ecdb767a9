"""The price tag of every way to split a training run: what it splits, buys, pays, and when it pays off."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class PriceTag:
    """One row of the book's ledger.

    Attributes:
        name: the field's term for the split.
        chapter: number of the chapter that opens with this tag.
        splits, buys, pays, pays_off: the four cells; ``pays_off`` is the condition under which it is worth it.
        paid_in: the resource on the bill: ``"communication"``, ``"idle"`` or ``"memory"`` (sets the colour).
        systems: where a reader meets it.
    """

    name: str
    chapter: str
    splits: str
    buys: str
    pays: str
    pays_off: str
    paid_in: str
    systems: str

    @property
    def cells(self) -> tuple[tuple[str, str], ...]:
        """The four cells with their labels, in the order in which every table shows them."""
        return (
            ("splits", self.splits),
            ("buys", self.buys),
            ("pays", self.pays),
            ("pays off when", self.pays_off),
        )

    def _repr_html_(self) -> str:
        """The tag as a table with a caption, for a notebook cell and the page."""
        rows = "".join(
            [f'<tr><th scope="row">{label}</th><td>{escape(text)}</td></tr>' for label, text in self.cells]
        )
        return (
            f'<div class="sl-tag sl-tag-{self.paid_in}"><table>'
            f"<caption>Price tag: {escape(self.name)}</caption><tbody>{rows}</tbody></table></div>"
        )


TAGS: dict[str, PriceTag] = {
    "data": PriceTag(
        name="data parallel",
        chapter="03",
        splits="the batch",
        buys="time: N ranks work on N shares of the samples",
        pays="a full copy of the training state on every rank, and one all-reduce of the gradients a step",
        pays_off="the all-reduce takes less than N−1 times the compute of a step (weak scaling), "
        "or 2P/B less than the compute of the whole batch (strong scaling)",
        paid_in="communication",
        systems="PyTorch DDP",
    ),
    "zero": PriceTag(
        name="ZeRO and FSDP",
        chapter="04",
        splits="optimizer state, then gradients, then parameters",
        buys="memory: down to 1/N of the training state",
        pays="nothing in volume for stages 1 and 2, half as much again for stage 3 (with one micro-batch a step)",
        pays_off="the state does not fit beside the activations",
        paid_in="communication",
        systems="DeepSpeed ZeRO-1/2/3, PyTorch FSDP",
    ),
    "tensor": PriceTag(
        name="tensor parallel",
        chapter="05",
        splits="the matrices inside a layer",
        buys="memory, and time within one layer",
        pays="four all-reduces of activations per layer and micro-batch",
        pays_off="the ranks share a fast link, such as NVLink in one node",
        paid_in="communication",
        systems="Megatron-LM",
    ),
    "pipeline": PriceTag(
        name="pipeline parallel",
        chapter="06",
        splits="the stack of layers",
        buys="memory for parameters, with little traffic",
        pays="idle time: (p−1)/(m+p−1) of the total",
        pays_off="there are many more micro-batches m than stages p",
        paid_in="idle",
        systems="GPipe, Megatron-LM 1F1B and interleaved",
    ),
    "context": PriceTag(
        name="context parallel",
        chapter="07",
        splits="the sequence",
        buys="activation memory for long sequences",
        pays="keys and values sent around a ring, or all-to-alls",
        pays_off="attention on one block takes longer than sending the next",
        paid_in="communication",
        systems="ring attention, Ulysses",
    ),
    "expert": PriceTag(
        name="expert parallel",
        chapter="07",
        splits="the experts of a mixture",
        buys="parameters without more compute per token",
        pays="two all-to-alls a layer each way, and the wait for the busiest expert",
        pays_off="tokens spread evenly and the all-to-all stays on fast links",
        paid_in="communication",
        systems="mixture-of-experts training",
    ),
}


def price_tag(key: str) -> PriceTag:
    """The price tag called ``key``: ``"data"``, ``"zero"``, ``"tensor"``, ``"pipeline"``, ``"context"``, ``"expert"``.

    Raises:
        ValueError: there is no such tag.
    """
    if key not in TAGS:
        raise ValueError(f"key must be one of {', '.join([repr(name) for name in TAGS])}, not {key!r}")
    return TAGS[key]


def ledger_html() -> str:
    """All tags side by side, one row each: the table of the index page."""
    labels = ["", *[label for label, _ in TAGS["data"].cells]]
    head = "".join([f'<th scope="col">{label}</th>' for label in labels])
    rows = "".join(
        [
            f'<tr class="sl-paid-{tag.paid_in}"><th scope="row">{escape(tag.name)}'
            f'<span class="sl-systems">{escape(tag.systems)}</span></th>'
            + "".join([f'<td data-label="{label}">{escape(text)}</td>' for label, text in tag.cells])
            + "</tr>"
            for tag in TAGS.values()
        ]
    )
    return (
        '<div class="sl-ledger" role="region" aria-label="The ledger" tabindex="0"><table>'
        "<caption>The ledger: nearly every split pays for one resource with another.</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )

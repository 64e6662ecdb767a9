"""Bytes that each rank was predicted to send, beside those that the kernel counted: for labs whose ranks differ."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

# gloo spends 144 bytes on a message beyond its data, and 288 on a step of its own ring, measured. This leaves room for
# another version; a chunk sent twice is still far beyond it.
HEADER_BYTES = 512
# It cuts large messages into segments that bring headers of their own: this share may come on top of a prediction.
WIRE_TOLERANCE = 0.01


def allowed_gap_bytes(predicted_bytes: float, messages: float) -> float:
    """How far headers may take the kernel's count from the prediction for ``messages`` of one rank, bytes."""
    return WIRE_TOLERANCE * predicted_bytes + HEADER_BYTES * messages


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What each rank sends in one phase.

    Attributes:
        messages: point-to-point messages of one rank.
        predicted_bytes: one number per rank.
        kernel_bytes: what the kernel sent, one number per rank; None where it can't be read.
    """

    messages: int
    predicted_bytes: tuple[float, ...]
    kernel_bytes: tuple[float, ...] | None

    @property
    def predicted(self) -> float:
        """The prediction, mean over the ranks."""
        return statistics.fmean(self.predicted_bytes)

    @property
    def sent(self) -> float | None:
        """The kernel's count, mean over the ranks; None where it can't be read."""
        return None if self.kernel_bytes is None else statistics.fmean(self.kernel_bytes)

    @property
    def gap(self) -> float | None:
        """The kernel's count against the prediction, all ranks together, as a fraction; None if either is nothing."""
        return self.sent / self.predicted - 1 if self.sent is not None and self.predicted else None

    @property
    def as_predicted(self) -> bool:
        """Whether no rank sends less than predicted, or more than headers explain; True without a count."""
        if self.kernel_bytes is None:
            return True
        return all(
            predicted <= sent <= predicted + allowed_gap_bytes(predicted, self.messages)
            for predicted, sent in zip(self.predicted_bytes, self.kernel_bytes, strict=True)
        )

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """For a table with :data:`SENT_COLUMNS`."""
        sent = "-" if self.sent is None else f"{self.sent:,.0f}"
        gap = "-" if self.gap is None else f"{self.gap:+.2%}"
        return str(self.messages), f"{self.predicted:,.0f}", sent, gap

    def complaint(self, what: str) -> list[str]:
        """A sentence about ``what`` if a rank's bytes are not as predicted, in a list; an empty list if they are."""
        if self.as_predicted:
            return []
        predicted, sent = (
            [f"{x:,.0f}" for x in row] for row in (self.predicted_bytes, self.kernel_bytes or ())
        )
        return [f"{what}: the ranks send {' / '.join(sent)} B, predicted {' / '.join(predicted)} B"]


SENT_COLUMNS = ("Messages", "Predicted, B", "Sent (kernel), B", "Against predicted")


def reading_words(reading: str | None) -> str:
    """The note below a table of sent bytes: how the kernel's count was read."""
    if reading is None:
        return "The kernel's count of sent bytes can't be read here, so the prediction stands alone."
    return (
        f"Sent: the kernel's counters of the ranks' TCP connections ({reading}), mean over the ranks. "
        "What it counts above the prediction is gloo's headers."
    )

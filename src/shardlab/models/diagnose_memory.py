"""Memory as measured at several numbers of ranks: is anything sharded?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import count
from shardlab.models.diagnose_common import Verdict, checks, how_many, plural, report, size_bytes
from shardlab.models.memory import model_states, sharding_reading
from shardlab.units import format_binary_bytes, format_bytes, significant


@dataclass(frozen=True)
class MemoryDiagnosis:
    """Device memory of one rank at several N. Sizes in bytes.

    Attributes:
        n_params: parameters of the model.
        n_ranks, n_bytes: the readings, by ranks.
        bytes_per_parameter: of each reading.
        copy_bytes: one whole copy of the weights in 16 bits.
        verdict: in words.
    """

    n_params: float
    n_ranks: tuple[int, ...]
    n_bytes: tuple[float, ...]
    bytes_per_parameter: tuple[float, ...]
    copy_bytes: float
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = []
        for ranks, used, each in zip(self.n_ranks, self.n_bytes, self.bytes_per_parameter):
            words = f"{_both(used)}, {significant(each, 2)} bytes per parameter"
            rows.append((plural(ranks, "rank"), words))
        rows.append(("weights in 16 bits", f"{_both(self.copy_bytes)} for one whole copy"))
        return report("Memory of one rank", rows, self.verdict)


def _both(n_bytes: float) -> str:
    return f"{format_bytes(n_bytes, 3)} ({format_binary_bytes(n_bytes, 3)})"


_SHARDED_OR_NOT = (
    "When was it read? A load that builds the whole model first, or a gathered copy, shows until it is freed",
    "The allocator: torch.cuda.memory_allocated() counts tensors, nvidia-smi also cached blocks and the CUDA context",
    "Whether the run really shards: the stage or strategy in its log, the sizes of its parameters on one rank",
)


def memory(n_params: float | str, readings: Any) -> MemoryDiagnosis:
    """Does measured memory fall with the ranks, and which copies would explain it?

    Args:
        n_params: parameters of the model, or text such as ``"6.05B"``.
        readings: pairs ``(ranks, bytes of one rank)``, two or more with different ranks; bytes may be text, ``"13 GB"``.

    Raises:
        ValueError: fewer than two readings, equal ranks, or sizes out of range.

    See :func:`shardlab.models.memory.sharding_reading` for the rule.
    """
    size = how_many("n_params", n_params)
    pairs = sorted(
        [(count("ranks in readings", n), size_bytes("bytes in readings", used)) for n, used in readings]
    )
    found = sharding_reading(size, pairs)
    copy = model_states(size, 1, 0, "frozen-2").total_bytes
    return MemoryDiagnosis(
        n_params=size,
        n_ranks=tuple([n for n, _ in pairs]),
        n_bytes=tuple([used for _, used in pairs]),
        bytes_per_parameter=found.bytes_per_parameter,
        copy_bytes=copy,
        verdict=_verdict(found.verdict, pairs[0][0], pairs[-1][0]),
    )


def _verdict(kind: str, fewest: int, most: int) -> Verdict:
    span = f"from {fewest} to {plural(most, 'rank')}"
    if kind == "sharded":
        text = f"Sharded: the memory of a rank falls about as it should {span}."
        return Verdict(code="sharded", text=text, checks=())
    if kind == "unsharded 16-bit weights":
        text = (
            f"Nothing is sharded at this moment: about 2 bytes per parameter, the same {span}, are one whole copy of the "
            "weights in 16 bits, loaded whole, gathered or cached. An estimate of sharded states says nothing about it."
        )
        return Verdict(code="unsharded-weights", text=text, checks=_SHARDED_OR_NOT)
    if kind == "replicated states":
        text = (
            f"Replicated: the memory of a rank does not fall {span}. Plain data parallelism, or what all ranks hold "
            "alike (activations, buffers, the CUDA context), fills it."
        )
        return Verdict(code="replicated", text=text, checks=_SHARDED_OR_NOT)
    text = (
        f"Partly sharded: the memory falls {span}, but less than the ranks grow. ZeRO-1 and 2 do that, whose weights "
        "stay whole, and so do activations and buffers beside sharded states."
    )
    return Verdict(
        code="partly-sharded",
        text=text,
        checks=checks("Subtract activations, buffers and context, and read once more", *_SHARDED_OR_NOT[1:]),
    )

"""Recipes: what one parameter costs while training, in bytes, copy by copy; named, with where each is met."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import choice, count, non_negative, positive


@dataclass(frozen=True)
class Recipe:
    """What one parameter costs while training, in bytes, copy by copy.

    Attributes:
        name: the name to pass as ``recipe``; its number is the total, rounded.
        parameters: the weights that the forward and backward pass use.
        gradients: the gradients that the backward pass writes (or accumulates into).
        master_weights: the fp32 copy that the optimizer updates, where the weights are narrower.
        master_gradients: an fp32 copy of the gradients that the optimizer step makes or keeps.
        optimizer: moments and other optimizer state.
        used_by: where this recipe is met.
        source: who says so.
    """

    name: str
    parameters: float
    gradients: float
    master_weights: float
    master_gradients: float
    optimizer: float
    used_by: str
    source: str

    @property
    def bytes_per_parameter(self) -> float:
        """All copies together, bytes per parameter on one rank without sharding."""
        return self.parameters + self.gradients + self.stage1_bytes

    @property
    def stage1_bytes(self) -> float:
        """What ZeRO-1 shards, that is master weights, master gradients and optimizer state (K in the ZeRO paper)."""
        return self.master_weights + self.master_gradients + self.optimizer


DEFAULT_RECIPE = "mixed-adam-16"
"""The recipe of the ZeRO paper: 2 + 2 + 12 bytes per parameter."""

_BLOCK_8BIT = 2048
_ADAFACTOR_WIDTH = 4096

RECIPES = (
    Recipe(
        name="mixed-adam-16",
        parameters=2,
        gradients=2,
        master_weights=4,
        master_gradients=0,
        optimizer=8,
        used_by="the ZeRO paper; 16-bit weights and gradients, fp32 master weights and Adam moments",
        source="Rajbhandari et al., ZeRO (arXiv 1910.02054), section 3.1",
    ),
    Recipe(
        name="megatron-18",
        parameters=2,
        gradients=4,
        master_weights=4,
        master_gradients=0,
        optimizer=8,
        used_by="Megatron-LM: gradients accumulate in fp32, there is no 16-bit copy of them; 6 + 12/N with the "
        "distributed optimizer (zero_stage=1)",
        source="Megatron-LM, megatron/training/theoretical_memory_usage.py; issue 654",
    ),
    Recipe(
        name="deepspeed-20",
        parameters=2,
        gradients=2,
        master_weights=4,
        master_gradients=4,
        optimizer=8,
        used_by="DeepSpeed: the optimizer step makes an fp32 copy of the 16-bit gradients; MT-NLG 530B counts 20 too",
        source="DeepSpeed, docs/code-docs/source/memory.rst, note about gradients; arXiv 2201.11990, section 2",
    ),
    Recipe(
        name="fp32-adam-16",
        parameters=4,
        gradients=4,
        master_weights=0,
        master_gradients=0,
        optimizer=8,
        used_by="fp32 training; PyTorch autocast and FSDP mixed precision, which cast weights for the moment of use",
        source="Kingma and Ba, Adam (arXiv 1412.6980), algorithm 1: two moments beside weight and gradient",
    ),
    Recipe(
        name="fp32-adam-12",
        parameters=4,
        gradients=0,
        master_weights=0,
        master_gradients=0,
        optimizer=8,
        used_by="what persists between steps in MaxText: fp32 weights and moments; gradients live only in the step",
        source="AI-Hypercomputer/maxtext, issue 606",
    ),
    Recipe(
        name="mixed-moment-12",
        parameters=2,
        gradients=2,
        master_weights=4,
        master_gradients=0,
        optimizer=4,
        used_by="mixed precision with one fp32 moment: momentum SGD or Lion",
        source="Chen et al., Lion (arXiv 2302.06675): momentum only",
    ),
    Recipe(
        name="mixed-adam8bit-10",
        parameters=2,
        gradients=2,
        master_weights=4,
        master_gradients=0,
        optimizer=2 + 2 * 4 / _BLOCK_8BIT,
        used_by="bitsandbytes Adam8bit: one byte per moment and an fp32 scale per block of 2048",
        source="Dettmers et al., 8-bit Optimizers via Block-wise Quantization (arXiv 2110.02861), section 2",
    ),
    Recipe(
        name="bf16-adam-8",
        parameters=2,
        gradients=2,
        master_weights=0,
        master_gradients=0,
        optimizer=4,
        used_by="everything in bf16, fine-tuning on one card; small updates round away without a master copy",
        source="2 + 2 + 2 + 2: Adam's four tensors at 2 bytes each",
    ),
    Recipe(
        name="fp32-adafactor-8",
        parameters=4,
        gradients=4,
        master_weights=0,
        master_gradients=0,
        optimizer=2 * 4 / _ADAFACTOR_WIDTH,
        used_by="T5; row and column sums instead of a second moment, here for 4096 x 4096 matrices, no momentum",
        source="Shazeer and Stern, Adafactor (arXiv 1804.04235), section 3",
    ),
    Recipe(
        name="fp32-momentum-12",
        parameters=4,
        gradients=4,
        master_weights=0,
        master_gradients=0,
        optimizer=4,
        used_by="fp32 SGD with momentum: convolutional networks, Goyal et al. 2017",
        source="weight, gradient, velocity: 4 bytes each",
    ),
    Recipe(
        name="fp32-sgd-8",
        parameters=4,
        gradients=4,
        master_weights=0,
        master_gradients=0,
        optimizer=0,
        used_by="plain fp32 SGD",
        source="weight and gradient: 4 bytes each",
    ),
    Recipe(
        name="frozen-2",
        parameters=2,
        gradients=0,
        master_weights=0,
        master_gradients=0,
        optimizer=0,
        used_by="16-bit weights that are not trained: the base model under LoRA, or inference",
        source="weights only",
    ),
)

RECIPE_NAMES = tuple([item.name for item in RECIPES])


def recipe_named(recipe: str | Recipe) -> Recipe:
    """The :class:`Recipe` of that name; a Recipe is handed through.

    Raises:
        ValueError: no recipe has that name (the message lists all names).
    """
    if isinstance(recipe, Recipe):
        return recipe
    name = choice("recipe", recipe, RECIPE_NAMES)
    return RECIPES[RECIPE_NAMES.index(name)]


def custom_recipe(
    parameters: float,
    gradients: float,
    optimizer: float,
    master_weights: float = 0.0,
    master_gradients: float = 0.0,
    name: str = "custom",
) -> Recipe:
    """A recipe from your own bytes per parameter, for precisions that ``RECIPES`` does not list.

    Raises:
        ValueError: a number is negative or not finite, or all are zero.
    """
    made = Recipe(
        name=name,
        parameters=non_negative("parameters", parameters, "bytes"),
        gradients=non_negative("gradients", gradients, "bytes"),
        master_weights=non_negative("master_weights", master_weights, "bytes"),
        master_gradients=non_negative("master_gradients", master_gradients, "bytes"),
        optimizer=non_negative("optimizer", optimizer, "bytes"),
        used_by="the caller",
        source="the caller",
    )
    positive("the sum of a recipe's bytes per parameter", made.bytes_per_parameter)
    return made


def adafactor_optimizer_bytes(rows: int, columns: int, momentum: bool = False) -> float:
    """Bytes of Adafactor's state for one matrix: ``4 (rows + columns)``, and ``4 rows columns`` with momentum.

    Raises:
        ValueError: a side is not a whole number from 1.

    Source: Shazeer and Stern, Adafactor (arXiv 1804.04235), section 3.
    """
    n_rows = count("rows", rows)
    n_columns = count("columns", columns)
    return 4.0 * (n_rows + n_columns) + (4.0 * n_rows * n_columns if momentum else 0.0)

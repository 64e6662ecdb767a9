"""Small distributed programs with one silent fault each, for :mod:`shardlab.labs.find_the_bug`.

``programs/`` holds them as the reader finds them, ``fixes/`` one right answer to each; :mod:`.trials` runs either on
real ranks against one process. Nothing here imports torch before a trial is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardlab.checks import choice

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Bug:
    """One fault.

    Attributes:
        name: of its files in ``programs`` and ``fixes``, and of its trial.
        function: the one function to mend.
        story: what was seen.
        hints: three, each says more.
        hangs: the program does not finish; the others finish with wrong numbers.
    """

    name: str
    function: str
    story: str
    hints: tuple[str, str, str]
    hangs: bool = False

    @property
    def program(self) -> Path:
        """The file to mend."""
        return FOLDER / "programs" / f"{self.name}.py"

    @property
    def reference_fix(self) -> Path:
        """One right answer; there are others."""
        return FOLDER / "fixes" / f"{self.name}.py"


BUGS = (
    Bug(
        name="missing_all_reduce",
        function="training_step",
        story=(
            "Four ranks train instead of one, on four times the data. The loss falls, just slower than one process "
            "with the same global batch, and the evaluation gives another number on every rank."
        ),
        hints=(
            "Compare the weights of two ranks after one step.",
            "List what the ranks tell each other in a step, and what they keep to themselves.",
            "The loss that is shown is the global batch's. Is the gradient?",
        ),
    ),
    Bug(
        name="wrong_gradient_scale",
        function="accumulated_gradient",
        story=(
            "To save memory, the batch was cut into micro-batches; the global batch stayed the same. Now training "
            "needs a smaller learning rate, and the more micro-batches, the smaller."
        ),
        hints=(
            "Compare the gradient with one process's. Do they differ in direction or in length?",
            "Change the number of ranks, then the number of micro-batches. Which of them moves the ratio?",
            "A mean over equal parts is the sum of their means over the number of parts. Count the parts.",
        ),
    ),
    Bug(
        name="forgotten_broadcast",
        function="build_model",
        story=(
            "Gradients are averaged correctly in every step. Still the loss is worse than one process's, differs from "
            "rank to rank, and a checkpoint of rank 0 does not reproduce the loss that was shown."
        ),
        hints=(
            "Look at the ranks before the first step.",
            "Averaged gradients keep equal ranks equal. What do they do with unequal ones?",
            "Two things draw random numbers here. One must be alike on all ranks, the other must not.",
        ),
    ),
    Bug(
        name="unequal_collectives",
        function="average_gradients",
        story=(
            "Training runs for hours, then stands still: no error, the processors busy, nothing written. It happens "
            "with certain batches only."
        ),
        hints=(
            "Ask where each rank waits. They are not in the same place.",
            "Ranks meet in collectives by order alone. Count the calls that each rank makes.",
            "Which batches make a rank leave a call out, and what would the others have got from it?",
        ),
        hangs=True,
    ),
    Bug(
        name="wrong_group",
        function="gradient_group",
        story=(
            "With tensor parallelism alone or data parallelism alone the numbers are right or nearly so. Together, the "
            "loss falls a little and stays there; no shape is wrong anywhere."
        ),
        hints=(
            "Draw the grid of ranks for a world of 4 and 2-way tensor parallelism. Who holds which half?",
            "Averaging makes sense between ranks that hold the same parameters and see different samples.",
            "For rank 0 in that grid, name the rank that holds the same half of the next replica.",
        ),
    ),
    Bug(
        name="shard_overlap",
        function="my_samples",
        story=(
            "The loss on the training set falls as it should, the evaluation is worse than one process's, and after an "
            "epoch some samples have never been used."
        ),
        hints=(
            "Collect the sample numbers of all ranks in one epoch and count each.",
            "Each rank takes its own stretch. Of what?",
            "Stretches of one list do not overlap. Stretches of different lists may.",
        ),
    ),
    Bug(
        name="dropout_seed",
        function="mlp",
        story=(
            "After tensor parallelism came in, dropout regularises less than before: the model overfits with the rate "
            "that used to be right. Without dropout, the output is one process's."
        ),
        hints=(
            "Compare which hidden units two ranks drop.",
            "On N ranks the hidden layer has N parts. How many different masks has it?",
            "In one place the ranks hold different things, in the other all hold the same. One stream can't serve both.",
        ),
    ),
    Bug(
        name="step_before_sync",
        function="training_step",
        story=(
            "The trace shows every all-reduce, with the right sizes, in every step. Still the ranks drift apart from "
            "the first step on, and the loss falls slower than one process's."
        ),
        hints=(
            "Compare the weights of two ranks after one step, then the gradients that are left.",
            "The averaged gradients are right. When are they there?",
            "Read the function in time, line by line: who uses the gradient, and what is in it then?",
        ),
    ),
    Bug(
        name="batch_norm_statistics",
        function="batch_statistics",
        story=(
            "Training is fine on one rank with a large batch. On many ranks with few samples each, the same global "
            "batch trains worse, and the normalised output is not one process's."
        ),
        hints=(
            "Compare mean and variance apart: one of them may be right when all ranks hold equally many samples.",
            "Give the ranks samples around different means. Is the spread of the whole the mean of the spreads?",
            "Which sums over samples can simply be added up over ranks?",
        ),
    ),
    Bug(
        name="unequal_tokens",
        function="mean_loss",
        story=(
            "The loss depends on how the same texts are dealt to the ranks, and short answers count more than long "
            "ones. With texts of one length everything agrees."
        ),
        hints=(
            "Give one rank a single token and the other a hundred. How much does the single one count?",
            "A mean of means is the mean only if all groups are equally large.",
            "Which two numbers of a rank must the others know?",
        ),
    ),
    Bug(
        name="local_clip",
        function="clip_gradient",
        story=(
            "Training was stable until the gradient was sharded. Now the loss has spikes that clipping used to stop, "
            "and the clipping threshold means something else with every number of ranks."
        ),
        hints=(
            "Put the clipped shards together and take the norm.",
            "Is the clipped gradient still parallel to the unclipped one? Compare two ranks' factors.",
            "How does the norm of a vector follow from its parts? Not by adding norms, nor by the largest.",
        ),
    ),
)

NAMES = tuple([bug.name for bug in BUGS])


def bug_named(name: str) -> Bug:
    """The bug with this name.

    Raises:
        ValueError: there is none.
    """
    return BUGS[NAMES.index(choice("bug", name, NAMES))]

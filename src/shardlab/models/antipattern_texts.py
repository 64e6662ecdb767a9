"""What :mod:`shardlab.models.antipatterns` says: name to (title, symptom, how to tell, the mend, when it is harmless)."""

from __future__ import annotations

TEXTS: dict[str, tuple[str, str, str, str, str]] = {
    "uncounted-traffic": (
        "More nodes, traffic not counted",
        "Nodes were added and the job is hardly faster, or slower.",
        "Time one rank's step alone and one all-reduce of the gradients; if the second is not well below the first, "
        "the network decides.",
        "Count the bytes before you add nodes: larger local batches, accumulation, 16-bit gradients, overlap, or a "
        "faster link.",
        "Where compute is long against the all-reduce, adding nodes is what data parallelism is for.",
    ),
    "needless-zero3": (
        "ZeRO-3 where ZeRO-1 fits",
        "The step is slow, memory is half empty, and every micro-batch gathers all weights.",
        "Count the all-gathers of one optimizer step: stage 3 has two for each micro-batch, stage 1 has one.",
        "Take the lowest stage that fits, or shard inside the node and replicate across nodes.",
        "On a fast link, or with large micro-batches, the gathers cost little.",
    ),
    "few-micro-batches": (
        "A pipeline fed with too few micro-batches",
        "GPUs idle at the start and the end of every step, and utilisation drops with every stage added.",
        "Double the micro-batches: if the time per micro-batch falls as the formula says, it was the bubble.",
        "More micro-batches, fewer stages, interleaved or zero-bubble schedules.",
        "From about eight micro-batches a stage on, the bubble is a tenth.",
    ),
    "weights-only": (
        "A checkpoint of the weights alone",
        "After a restart the loss jumps, or falls along another curve than before.",
        "Resume twice from one checkpoint, and compare with the run that was not stopped: the first loss is equal, the "
        "next ones are not.",
        "Save moments, schedule, step, random states, data position and loss scale with the weights.",
        "While the learning rate is near its peak anyway, the restart changes little.",
    ),
    "own-shuffles": (
        "Every rank shuffles by itself",
        "The training loss looks right; some samples come twice an epoch and some never.",
        "Gather the sample numbers of all ranks for one epoch and count each.",
        "One seed for all ranks, the epoch added to it on all (set_epoch), shares cut from that one order.",
        "With data that is read once at random anyway, the harm is that coverage is left to chance.",
    ),
    "averaged-away": (
        "Averages over ranks hide a slow one",
        "Step time rises, the loss curve is unchanged, and the mean over ranks looks healthy.",
        "Compare compute time and waiting time rank by rank: the slow rank has the longest compute and the "
        "shortest wait in the all-reduce.",
        "Log the slowest rank beside the mean, move the work off that node, replace it.",
        "A rank that is slower by a few per cent costs just those few per cent.",
    ),
    "same-learning-rate": (
        "A larger global batch, the same learning rate",
        "The loss falls more slowly per sample; nothing breaks.",
        "Plot the loss over samples, not over steps: fewer updates of the same size get less far.",
        "Scale the rate with warm-up and test it: linear is a rule for SGD, the square root a start for Adam.",
        "If accumulation keeps the global batch as it was, there is nothing to scale.",
    ),
    "busy-is-not-working": (
        "Utilisation read as work done",
        "The monitor says 100 % busy, tokens per second say otherwise.",
        "Work out MFU from tokens per second: kernels that wait for the network count as busy.",
        "Watch MFU, the time in collectives, and bus bandwidth; keep a trace of one step.",
        "Without communication to wait for, utilisation and work rise and fall together.",
    ),
    "sync-every-time": (
        "Accumulation that still synchronises",
        "Four micro-batches take four times as long as one: accumulation saves nothing.",
        "Count the all-reduces of one optimizer step: there should be one set, not one set for each micro-batch.",
        "Skip the synchronisation in all micro-batches but the last: no_sync in DDP, its own switch in FSDP2.",
        "If the all-reduce is short against compute, there is nothing to skip.",
    ),
    "tensor-between-nodes": (
        "Tensor parallelism across nodes",
        "Adding nodes to a layer's matrices makes the layer slower.",
        "In a trace, the all-reduces of every layer take longer than the products between them.",
        "Keep tensor parallelism inside the node, and put pipeline or data parallelism between nodes.",
        "On a link near NVLink's speed the layer does not mind where its other half is.",
    ),
    "rank-0-writes": (
        "Rank 0 writes by itself",
        "A save takes minutes, and the files of all other ranks are finished long before.",
        "Compare the time stamps of the ranks' files: one that comes much later wrote alone.",
        "Sharded checkpoints that every rank writes at once; look for gathers, metadata and exports on rank 0.",
        "A small file that rank 0 writes alone is over before anybody notices.",
    ),
    "uneven-ranks": (
        "Ranks with unequal numbers of batches",
        "Training stands still near the end of an epoch, processors busy, until the time-out of the collective.",
        "Ask every rank where it waits: those with batches left are in an all-reduce, the others have gone home.",
        "Drop or pad to equal counts, or use a join context.",
        "There is no mild form: one batch too few hangs the job as surely as many.",
    ),
    "data-from-the-start": (
        "Resuming without the data position",
        "After the restart the training loss is better than before, and evaluation gets worse.",
        "Compare the next batches after a resume with those of a run that was not stopped: they must be the same.",
        "Save epoch, offset and the sampler's seed with the checkpoint.",
        "A crash in the first minutes repeats little.",
    ),
    "mean-of-means": (
        "The mean of the ranks' mean losses",
        "The loss depends on how the same texts are dealt out, and short texts weigh more.",
        "Give one rank a single token: in a right mean it hardly counts.",
        "Add up losses and tokens apart, over micro-batches and ranks, then divide once.",
        "With texts of one length both means agree.",
    ),
    "one-big-unit": (
        "FSDP with the whole model as one unit",
        "Memory does not fall as ranks are added.",
        "Plot peak memory over the number of ranks: shards fall as 1/N, a whole unit does not.",
        "Wrap every block, so that one block is whole at a time.",
        "A model of few layers has little to cut.",
    ),
    "gpipe-memory": (
        "All forwards before all backwards",
        "The pipeline runs out of memory when micro-batches are added to shrink the bubble.",
        "Count the micro-batches in flight on the first stage: 1F1B holds at most p, GPipe all m.",
        "1F1B: the same bubble, with activations that do not grow with m.",
        "With as many micro-batches as stages the two hold the same.",
    ),
}

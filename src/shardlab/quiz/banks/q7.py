"""Q7: what must a checkpoint hold, and what happens if it holds the parameters only?

The source's list is good, with two corrections: the accumulation counter matters only for a checkpoint inside a step
(and then the gradients matter too), and the fp32 master weights, the step count, the loss scale and the layout belong
to it. A curve need not jump at once: without the optimizer state the first loss is the same and the run departs later.
"""

from __future__ import annotations

from shardlab.models.batch import warmup_learning_rate
from shardlab.models.checkpoint import (
    CONTENTS,
    async_checkpoint,
    checkpoint_bytes,
    checkpoint_cost,
    cluster_mtbf_s,
    recovery,
    transfer_time_s,
    young_interval_s,
)
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Trap,
    Variant,
    choice,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, billions, figure, gigabytes, percent, ranking, share, whole
from shardlab.units import format_bandwidth, format_bytes, format_time, significant

SEED = 7
DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0


def build(seed: int = SEED) -> Quiz:
    """The source's question with a model of 7 billion parameters first, then five fresh variants."""
    return quiz_of(
        id="q7",
        title="What must a checkpoint hold?",
        question="What breaks without each part, how large is it all, and how often should it be written?",
        variants=(
            _chapter(),
            _replay(seed),
            _size(seed),
            _interval(seed),
            _asynchronous(seed),
            _recovery(seed),
        ),
        values={},
        seed=seed,
    )


def _minutes(seconds: float) -> str:
    """A time in minutes: ``19.3 min``."""
    return significant(seconds / MINUTE, 3) + " min"


def _hours(seconds: float) -> str:
    """A time in hours: ``3.09 h``."""
    return significant(seconds / HOUR, 3) + " h"


def _chapter() -> Variant:
    params = 7e9
    whole_run = checkpoint_bytes(params)
    served = checkpoint_bytes(params, "weights-16bit")
    texts = {
        "weights-16bit": "16-bit weights",
        "weights-fp32": "fp32 weights",
        "adam-12": "fp32 weights and Adam's two moments",
        "adam-14": "16-bit weights, fp32 weights and Adam's two moments",
    }
    values = {
        "params": billions(params),
        "whole": gigabytes(whole_run),
        "served": gigabytes(served),
    }
    rows = []
    for name, _, _ in CONTENTS:
        size = checkpoint_bytes(params, name)
        rows.append((size, name, texts[name], gigabytes(size)))
    return variant(
        id="chapter",
        title="Saved between two steps",
        scenario="A model of {params} parameters trains in mixed precision with Adam, a learning-rate schedule, dropout and shuffled data. "
        "A checkpoint is written after an optimizer step, before the next micro-batch. A killed run should go on from it as if nothing had happened.",
        given=(Given(symbol="Ψ", meaning="parameters", value="{params}"),),
        values=values,
        parts=(
            several(
                id="contents",
                prompt="What must the checkpoint hold beside the 16-bit weights?",
                options=(
                    right(
                        "moments",
                        "Adam's two moments and its step count",
                        "Without them the next updates are others.",
                    ),
                    right(
                        "master", "the fp32 master weights", "The 16-bit weights have lost their low bits."
                    ),
                    right(
                        "schedule",
                        "where the learning-rate schedule stands",
                        "Otherwise it begins again, often with a warm-up.",
                    ),
                    right("random", "the random states of every rank", "Dropout would draw other masks."),
                    right(
                        "data",
                        "the position in the data",
                        "Otherwise the run sees samples again that it has seen.",
                    ),
                    wrong("gradients", "the gradients", "gradients-are-state"),
                    wrong("counter", "how many micro-batches have been added up", "counter-between-steps"),
                    wrong("activations", "the activations", "activations-are-state"),
                ),
            ),
            figure(
                id="bytes",
                prompt="How large is it, with 2 bytes of weights, 4 of master weights and 8 of moments per parameter?",
                key=whole_run / 1e9,
                unit="GB",
                wrong=[
                    (served / 1e9, "weights-only"),
                    (16 * params / 1e9, "gradients-are-state"),
                    (checkpoint_bytes(params, "adam-12") / 1e9, "copy-forgotten"),
                    (whole_run / 2**30, "binary-giga"),
                ],
                solution=(
                    "14 bytes for each of {params} parameters: {whole}. Schedule, data position and random states add kilobytes.",
                ),
            ),
            ranking(
                id="sizes",
                prompt="Put these checkpoints in order of size.",
                first="smallest",
                last="largest",
                rows=rows,
                start=("adam-12", "weights-16bit", "adam-14", "weights-fp32"),
                traps=(
                    Trap(
                        above="adam-12",
                        below="weights-fp32",
                        misconception="weights-only",
                        why="Two fp32 moments are twice the fp32 weights.",
                    ),
                ),
            ),
            choice(
                id="optimizer",
                prompt="A run resumes with its parameters, but Adam's moments begin at zero. What does the loss show?",
                options=(
                    wrong("jump", "It jumps in the very first step.", "state-shows-at-once"),
                    right(
                        "later",
                        "The first loss is as it would have been; the parameters depart from there on.",
                        "The first loss depends on parameters and data alone. The first update is already another one.",
                    ),
                    wrong(
                        "nothing",
                        "Nothing, ever: the moments fill up again in a step or two.",
                        "moments-recover",
                    ),
                    wrong("crash", "Nothing: the framework refuses to start.", "framework-checks"),
                ),
            ),
            choice(
                id="data",
                prompt="Another run resumes with everything but its position in the data. What happens?",
                options=(
                    right(
                        "again",
                        "It starts the epoch anew: it sees samples again, and the others of this epoch come late or never.",
                        "The loss differs from the first step on, because the samples do.",
                    ),
                    wrong(
                        "skip",
                        "It goes on with the next sample, because the loader counts by the step.",
                        "framework-checks",
                        "A loader starts at its beginning unless it is told where to go on.",
                    ),
                    wrong("none", "Nothing: the data is shuffled anyway.", "shuffling-hides-it"),
                    wrong(
                        "later",
                        "The first loss is equal; the run departs later.",
                        "state-shows-at-once",
                        "That is so without the optimizer state. Here the first batch is already another one.",
                    ),
                ),
            ),
            choice(
                id="verify",
                prompt="How do you test that a checkpoint holds everything?",
                options=(
                    wrong("loads", "It loads without an error.", "framework-checks"),
                    wrong(
                        "first",
                        "The first loss after resuming equals that of the run that was not stopped.",
                        "state-shows-at-once",
                        "Moments and schedule do not show in the first loss. Compare some tens of steps.",
                    ),
                    right(
                        "twin",
                        "Train on for some tens of steps, once without and once with a stop in between, and compare parameters and losses bit by bit.",
                        "Each omission shows within such a stretch: data and random states at once, optimizer and schedule a little later.",
                    ),
                    wrong(
                        "size",
                        "Its size is right.",
                        "framework-checks",
                        "Random states and data position are kilobytes of {whole}.",
                    ),
                ),
            ),
            open_question(
                id="explain",
                prompt="What must a checkpoint hold so that a run goes on as if nothing had happened, and what happens with the parameters alone?",
                answer="Parameters with their fp32 master copy, Adam's moments and step, the position of the learning-rate schedule, the loss scale where there is one, the global step and the position in the data, "
                "the random states of every rank, and the layout that wrote it (ranks and axes), because shards are read back by it. Gradients and the accumulation counter only if it is written inside a step. "
                "With the parameters alone ({served} of {whole}) the momentum is gone, the schedule begins again and samples repeat: the first loss may look right, and the run is "
                "another one from then on.",
                points=(
                    "Optimizer: moments, step, and the fp32 master weights.",
                    "Schedule, global step, position in the data, random states of every rank.",
                    "The layout; gradients and the accumulation counter only inside a step.",
                    "Without the optimizer the first loss is the same: the departure comes later.",
                ),
            ),
        ),
    )


def _replay(seed: int) -> Variant:
    draw = Draw(seed, "q7/replay")
    batch = draw.pick((128, 256, 512, 1024))
    epoch_steps = draw.pick((400, 500, 600, 800))
    warmup = draw.pick((2000, 2500, 4000, 5000))
    stop = draw.until(
        lambda: epoch_steps * draw.pick((1, 2)) + 10 * draw.pick((7, 12, 18, 23, 31, 37)),
        lambda step: step < warmup,
    )
    samples = epoch_steps * batch
    seen = stop % epoch_steps
    rate = warmup_learning_rate(stop, warmup, 1.0)
    values = {
        "batch": str(batch),
        "samples": str(samples),
        "stop": str(stop),
        "warmup": str(warmup),
        "epoch_steps": str(epoch_steps),
        "seen": str(seen),
        "again": str(seen * batch),
        "rate": percent(rate),
        "late": str(warmup + stop),
    }
    return variant(
        id="replay",
        title="Resumed with the parameters only",
        scenario="A run takes {batch} samples per step from a set of {samples}, shuffled anew every epoch, and warms its learning rate up linearly from 0 over {warmup} steps. "
        "It stops after step {stop} and resumes from a checkpoint that holds the parameters only, so data and schedule begin again.",
        given=(
            Given(symbol="b", meaning="samples per step", value="{batch}"),
            Given(symbol="D", meaning="samples in the set", value="{samples}"),
            Given(symbol="S", meaning="steps before the stop", value="{stop}"),
            Given(symbol="W", meaning="steps of warm-up", value="{warmup}"),
        ),
        values=values,
        parts=(
            whole(
                id="again",
                prompt="How many samples of the epoch in which it stopped does it read twice, if the shuffle is the same?",
                key=seen * batch,
                unit="samples",
                wrong=[
                    (stop * batch, "epochs-forgotten"),
                    (samples - seen * batch, "other-term", "Those are the samples that were still to come."),
                    (seen, "steps-for-samples"),
                    (samples, "epochs-forgotten", "It had read only a part of this epoch."),
                ],
                solution=(
                    "An epoch has {samples} / {batch} = {epoch_steps} steps, so after step {stop} it is {seen} steps into an epoch.",
                    "{seen} · {batch} = {again} samples.",
                ),
            ),
            share(
                id="rate",
                prompt="Which share of the peak learning rate should the run go on with?",
                key=rate,
                wrong=[
                    (0.0, "schedule-restarts"),
                    (1.0, "warmup-forgotten"),
                    (1 - rate, "other-term", "That is the share still missing."),
                    (seen / warmup, "epoch-for-step"),
                ],
                solution=(
                    "After {stop} of {warmup} steps of warm-up it is at {rate} of the peak. Without the schedule it begins at 0.",
                ),
            ),
            whole(
                id="late",
                prompt="At which step, counted from the very beginning, is the warm-up of the resumed run over?",
                key=warmup + stop,
                unit="steps",
                wrong=[
                    (
                        warmup,
                        "schedule-restarts",
                        "That is where it should be over. The schedule begins again at step {stop}.",
                    ),
                    (warmup - stop, "other-term", "That many steps of warm-up were still to come."),
                    (2 * warmup, "epoch-for-step"),
                ],
                solution=(
                    "It warms up for {warmup} steps from {stop} on: until step {late} in place of {warmup}.",
                ),
            ),
            choice(
                id="cure",
                prompt="You have this checkpoint and nothing else, but know the seed and the step. What can still be put right?",
                options=(
                    right(
                        "some",
                        "Data position and schedule, from the step; the moments are lost.",
                        "Skip {seen} steps of the epoch's shuffle and set the schedule to {stop}. Moments take the gradients of many past steps.",
                    ),
                    wrong(
                        "all",
                        "Everything: the moments follow from the parameters.",
                        "moments-recover",
                        "They are running means of past gradients, and those are gone.",
                    ),
                    wrong("none", "Nothing: all of it is lost.", "position-needs-file"),
                    wrong(
                        "fresh",
                        "Nothing has to be: the first loss will be right.",
                        "state-shows-at-once",
                        "The first loss is of other samples, and the updates are others.",
                    ),
                ),
            ),
        ),
    )


def _size(seed: int) -> Variant:
    draw = Draw(seed, "q7/size")
    params = 1e9 * draw.pick((7, 13, 20, 30, 70, 175))
    ranks = draw.pick((16, 32, 64, 128))
    storage = 1e9 * draw.pick((5, 10, 20, 40))
    every = MINUTE * draw.pick((20, 30, 45, 60))
    size = checkpoint_bytes(params)
    write = transfer_time_s(size, storage)
    # One rank may be slower than the storage is for all.
    one_rank = 1e9 * draw.pick((0.5, 1, 2))
    alone = transfer_time_s(size, storage, 1, one_rank)
    overhead = checkpoint_cost(every, write, 1e9).overhead_fraction
    values = {
        "params": billions(params),
        "N": str(ranks),
        "B": format_bandwidth(storage),
        "b": format_bandwidth(one_rank),
        "minutes": f"{every / MINUTE:.0f}",
        "size": format_bytes(size),
        "each": gigabytes(size / ranks),
        "write": format_time(write, 3),
        "alone": format_time(alone, 3),
        "overhead": f"{100 * overhead:.2f} %",
        "kept": format_bytes(10 * size),
        "served": gigabytes(checkpoint_bytes(params, "weights-16bit")),
    }
    return variant(
        id="size",
        title="How large, and how long?",
        scenario="{params} parameters, 14 bytes each in a checkpoint: 16-bit weights, fp32 master weights and two moments. {N} ranks write their shards at once; the storage takes {B} in all. "
        "Training stops while they write.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="ranks that write", value="{N}"),
            Given(symbol="B", meaning="storage, all ranks together", value="{B}"),
            Given(symbol="b", meaning="what one rank can write", value="{b}"),
        ),
        values=values,
        parts=(
            figure(
                id="size",
                prompt="How large is one checkpoint?",
                key=size / 1e9,
                unit="GB",
                wrong=[
                    (2 * params / 1e9, "weights-only"),
                    (16 * params / 1e9, "gradients-are-state"),
                    (12 * params / 1e9, "copy-forgotten"),
                    (size * ranks / 1e9, "copy-per-rank"),
                    (size / ranks / 1e9, "other-term", "That is the shard of one rank."),
                ],
                solution=("14 · {params} bytes are {size}; each rank writes {each}.",),
            ),
            figure(
                id="write",
                prompt="How long does it take to write, if the storage is the limit?",
                key=write,
                unit="s",
                relative=0.015,
                wrong=[
                    (alone, "rank-zero-writes"),
                    (write / ranks, "storage-per-rank"),
                    (8 * write, "bits-for-bytes"),
                    (write * 2 / 14, "weights-only"),
                    (write * 16 / 14, "gradients-are-state"),
                ],
                solution=(
                    "{size} at {B} take {write}. If rank 0 gathered and wrote it all at {b}, it would take {alone}.",
                ),
            ),
            share(
                id="overhead",
                prompt="It is written after every {minutes} min of training. What share of the time goes into writing?",
                key=overhead,
                points=0.02 if overhead < 0.01 else 0.1,
                wrong=[
                    (
                        write / every,
                        "wrong-whole",
                        "That is over the training time. The question asks for a share of both.",
                    ),
                    (alone / (every + alone), "rank-zero-writes"),
                    (1 - overhead, "hidden-exposed", "That is the share of training."),
                    (write / ranks / every, "storage-per-rank"),
                ],
                solution=("{write} out of {minutes} min and {write}: {overhead}.",),
            ),
            choice(
                id="keep",
                prompt="The storage fills up. Which advice keeps the run safe?",
                options=(
                    right(
                        "some",
                        "Keep the newest few whole checkpoints, and of older ones the 16-bit weights.",
                        "Ten whole ones take {kept}. The weights alone take {served} each and are enough to evaluate, not to resume.",
                    ),
                    wrong(
                        "weights",
                        "Write 16-bit weights only: everything else can be computed again.",
                        "moments-recover",
                        "Moments are running means of past gradients.",
                    ),
                    wrong("one", "Keep one, and write the next over it.", "overwrite-in-place"),
                    wrong(
                        "rank",
                        "Let rank 0 write only its own shard.",
                        "copy-per-rank",
                        "With sharded states each rank holds another part: all shards are needed.",
                    ),
                ),
            ),
        ),
    )


def _interval(seed: int) -> Variant:
    draw = Draw(seed, "q7/interval")
    nodes = draw.pick((64, 128, 256, 512, 1024))
    node_days = draw.pick((100, 150, 200, 300, 400))
    write = draw.pick((20.0, 30.0, 45.0, 60.0, 90.0))
    restart = MINUTE * draw.pick((5, 8, 10, 15))
    mtbf = cluster_mtbf_s(node_days * DAY, nodes)
    best = young_interval_s(write, mtbf)
    cost = checkpoint_cost(best, write, mtbf, restart)
    often, seldom = [checkpoint_cost(best * factor, write, mtbf, restart) for factor in (0.25, 4)]
    values = {
        "nodes": str(nodes),
        "node_days": str(node_days),
        "write": format_time(write),
        "restart": _minutes(restart),
        "mtbf": _hours(mtbf),
        "best": _minutes(best),
        "waste": percent(cost.first_order_waste),
        "writing": percent(write / best),
        "redoing": percent(best / 2 / mtbf),
        "restarting": percent(restart / mtbf),
        "often": percent(often.first_order_waste),
        "seldom": percent(seldom.first_order_waste),
        "quarter": _minutes(best / 4),
        "fourfold": _minutes(4 * best),
    }
    return variant(
        id="interval",
        title="How often?",
        scenario="A node fails once in {node_days} days on average. A job needs all of its {nodes} nodes. A checkpoint stops training for {write}; after a failure it takes {restart} until training runs again.",
        given=(
            Given(symbol="n", meaning="nodes", value="{nodes}"),
            Given(symbol="m", meaning="days between failures of one node", value="{node_days}"),
            Given(symbol="δ", meaning="time to write a checkpoint", value="{write}"),
            Given(symbol="R", meaning="restart", value="{restart}"),
        ),
        values=values,
        parts=(
            figure(
                id="mtbf",
                prompt="What is the mean time between failures of the job, in hours?",
                key=mtbf / HOUR,
                unit="h",
                wrong=[
                    (node_days * 24, "one-node"),
                    (mtbf / DAY, "days-for-hours"),
                    (node_days / nodes, "days-for-hours"),
                ],
                solution=("Any of {nodes} nodes stops the job: {node_days} days / {nodes} = {mtbf}.",),
            ),
            figure(
                id="best",
                prompt="How long should the job train between checkpoints, by Young's formula √(2δ*M*), in minutes?",
                key=best / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    (young_interval_s(write, node_days * DAY) / MINUTE, "one-node"),
                    (
                        best / MINUTE / 2**0.5,
                        "root-of-half",
                        "That is √(δ*M*). The lost work is half an interval, so a 2 stands under the root.",
                    ),
                    (mtbf / MINUTE, "once-per-failure"),
                    (mtbf / 2 / MINUTE, "once-per-failure"),
                    (2 * write * mtbf / HOUR / MINUTE, "root-forgotten"),
                ],
                solution=("√(2 · {write} · {mtbf}) = {best}.",),
            ),
            share(
                id="waste",
                prompt="What share of the time is lost then, to first order: δ/τ + (τ/2 + *R*)/*M*?",
                key=cost.first_order_waste,
                points=0.4,
                wrong=[
                    (write / best, "other-term", "That is the writing alone."),
                    ((best / 2 + restart) / mtbf, "other-term", "That is lost work and restarts alone."),
                    (write / best + best / 2 / mtbf, "restart-forgotten"),
                    (write / best + (best + restart) / mtbf, "whole-interval-lost"),
                ],
                solution=(
                    "Writing {writing}, work done again {redoing}, restarts {restarting}: {waste}. At Young's interval the first two are equal.",
                ),
            ),
            choice(
                id="change",
                prompt="Somebody proposes a checkpoint every {quarter}, “to be safe”. What happens to the loss of time?",
                options=(
                    judged(
                        "rises",
                        "It rises to {often}: four times the writing for a little less work done again.",
                        often.first_order_waste > cost.first_order_waste,
                        "It would rise to {seldom} with one every {fourfold}, too: {best} lies between.",
                    ),
                    wrong("falls", "It falls, because less work is lost.", "more-is-safer"),
                    wrong("same", "It stays: writing is cheap.", "writing-is-free"),
                    wrong("failures", "It falls, because there are fewer failures.", "checkpoints-prevent"),
                ),
            ),
        ),
    )


def _asynchronous(seed: int) -> Variant:
    draw = Draw(seed, "q7/asynchronous")
    blocked = draw.pick((2.0, 3.0, 4.0, 5.0))
    durable = draw.pick((60.0, 90.0, 120.0, 180.0))
    interval = MINUTE * draw.pick((5, 8, 10, 15))
    mtbf = HOUR * draw.pick((3, 4, 6, 8))
    found = async_checkpoint(blocked, durable, mtbf, interval_s=interval)
    plain = checkpoint_cost(interval, durable, mtbf)
    values = {
        "blocked": format_time(blocked),
        "durable": format_time(durable),
        "interval": _minutes(interval),
        "overhead": f"{100 * found.overhead_fraction:.2f} %",
        "plain": percent(plain.overhead_fraction),
        "lost": _minutes(found.lost_work_s),
        "half": _minutes((interval + blocked) / 2),
        "worst": _minutes(found.worst_lost_work_s),
    }
    return variant(
        id="asynchronous",
        title="Written behind the training",
        scenario="Training stops for {blocked} to copy its states into host memory, then goes on while they are written. {durable} after the copy the checkpoint is safe. "
        "The job trains {interval} between two copies.",
        given=(
            Given(symbol="c", meaning="training stops for the copy", value="{blocked}"),
            Given(symbol="d", meaning="from the copy until it is safe", value="{durable}"),
            Given(symbol="τ", meaning="training between copies", value="{interval}"),
        ),
        values=values,
        parts=(
            share(
                id="overhead",
                prompt="For what share of the time does training stand still?",
                key=found.overhead_fraction,
                points=0.02,
                wrong=[
                    (durable / (interval + durable), "durable-for-blocked"),
                    ((blocked + durable) / (interval + blocked + durable), "durable-for-blocked"),
                    (0.0, "asynchronous-is-free"),
                    (1 - found.overhead_fraction, "hidden-exposed", "That is the share of training."),
                ],
                solution=(
                    "{blocked} out of {interval} and {blocked}: {overhead}. Written while training waits, it would be {plain}.",
                ),
            ),
            figure(
                id="lost",
                prompt="How much work does a failure cost on average, in minutes?",
                key=found.lost_work_s / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    ((interval + blocked) / 2 / MINUTE, "copy-is-safe"),
                    ((interval + blocked) / MINUTE, "whole-interval-lost"),
                    (found.worst_lost_work_s / MINUTE, "worst-for-mean"),
                    (durable / MINUTE, "other-term", "To it comes half a period on average."),
                ],
                solution=(
                    "Half a period, {half}, and {durable} more, because a copy that is not yet safe does not count: {lost}.",
                ),
            ),
            figure(
                id="worst",
                prompt="And at worst?",
                key=found.worst_lost_work_s / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    ((interval + blocked) / MINUTE, "copy-is-safe"),
                    (found.lost_work_s / MINUTE, "mean-for-worst"),
                    ((interval + blocked + 2 * durable) / MINUTE, "durable-for-blocked"),
                ],
                solution=(
                    "A failure just before a checkpoint becomes safe falls back to the one before: a whole period and {durable}, {worst}.",
                ),
            ),
            choice(
                id="report",
                prompt="A vendor says: “Checkpoints take {blocked}.” Which second figure do you ask for?",
                options=(
                    right(
                        "durable",
                        "The time until a checkpoint is safe on storage.",
                        "{durable} here. It decides how much work a failure costs, and how short the interval may be.",
                    ),
                    wrong(
                        "size",
                        "Its size in memory.",
                        "writing-is-free",
                        "That has to fit into host memory. It does not say when the data is safe.",
                    ),
                    wrong(
                        "none",
                        "No other: {blocked} is what the job pays.",
                        "copy-is-safe",
                        "It is what a run without failures pays.",
                    ),
                    wrong(
                        "speed",
                        "The speed of the copy.",
                        "durable-for-blocked",
                        "That is in the {blocked} already.",
                    ),
                ),
            ),
        ),
    )


def _recovery(seed: int) -> Variant:
    draw = Draw(seed, "q7/recovery")

    def back(detect: float, restart: float, params: float, read: float, interval: float) -> float:
        load = transfer_time_s(checkpoint_bytes(params), read)
        return recovery(detect, restart, load, interval).back_where_it_was_s

    def changed(drawn: tuple[float, ...]) -> list[float]:
        detect, restart, params, read, interval = drawn
        return [
            back(detect, restart, params, read, interval / 2),
            back(0, restart, params, read, interval),
            back(detect, restart, params, 2 * read, interval),
        ]

    drawn = draw.until(
        lambda: (
            MINUTE * draw.pick((2, 5, 10, 15, 30)),
            MINUTE * draw.pick((3, 4, 6, 8)),
            1e9 * draw.pick((20, 30, 70, 175)),
            1e9 * draw.pick((1, 2, 4, 5, 8)),
            MINUTE * draw.pick((20, 30, 40, 60)),
        ),
        lambda drawn: apart(changed(drawn)),
    )
    detect, restart, params, read, interval = drawn
    load = transfer_time_s(checkpoint_bytes(params), read)
    found = recovery(detect, restart, load, interval)
    sooner = changed(drawn)
    names = ("halved", "noticed", "rapid")
    texts = (
        "checkpoints twice as often",
        "a watchdog that notices a failure at once",
        "storage that is read twice as fast",
    )
    values = {
        "params": billions(params),
        "detect": _minutes(detect),
        "restart": _minutes(restart),
        "size": format_bytes(checkpoint_bytes(params)),
        "B": format_bandwidth(read),
        "interval": _minutes(interval),
        "load": _minutes(load),
        "ready": _minutes(found.rto_s),
        "redo": _minutes(found.rpo_s),
        "back": _minutes(found.back_where_it_was_s),
    }
    options = []
    for index in range(3):
        name = names[index]
        values[name] = _minutes(sooner[index])
        outcome = "{" + name + "} in place of {back}. "
        if sooner[index] == min(sooner):
            options.append(right(name, texts[index], outcome + "The others save less."))
        else:
            options.append(wrong(name, texts[index], "smaller-term", outcome + "Another change does more."))
    return variant(
        id="recovery",
        title="From the failure to where it was",
        scenario="A rank dies. It takes {detect} until a collective runs into its time limit, {restart} to replace the node and start all processes, and then all ranks read "
        "the checkpoint of {params} parameters (14 bytes each) at {B} in all. The job had trained {interval} between checkpoints.",
        given=(
            Given(symbol="t", meaning="until it is noticed", value="{detect}"),
            Given(symbol="r", meaning="replace and restart", value="{restart}"),
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="B", meaning="storage, all ranks together", value="{B}"),
            Given(symbol="τ", meaning="training between checkpoints", value="{interval}"),
        ),
        values=values,
        parts=(
            figure(
                id="load",
                prompt="How long does loading take, in minutes?",
                key=load / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    (load * 2 / 14 / MINUTE, "weights-only"),
                    (load * 16 / 14 / MINUTE, "gradients-are-state"),
                    (8 * load / MINUTE, "bits-for-bytes"),
                    (load * 12 / 14 / MINUTE, "copy-forgotten"),
                ],
                solution=("14 bytes for each of {params} parameters are {size}; at {B} that takes {load}.",),
            ),
            figure(
                id="ready",
                prompt="How long after the failure does training run again?",
                key=found.rto_s / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    ((found.rto_s - load) / MINUTE, "load-forgotten"),
                    ((found.rto_s - detect) / MINUTE, "noticed-at-once"),
                    (found.back_where_it_was_s / MINUTE, "redo-in-restart"),
                ],
                solution=("{detect} + {restart} + {load} = {ready}: the recovery time.",),
            ),
            figure(
                id="back",
                prompt="And how long, on average, until it is back where it was?",
                key=found.back_where_it_was_s / MINUTE,
                unit="min",
                relative=0.015,
                wrong=[
                    (found.rto_s / MINUTE, "redo-forgotten"),
                    (found.worst_s / MINUTE, "worst-for-mean"),
                    (found.rpo_s / MINUTE, "other-term", "That is the work done again alone."),
                ],
                solution=("Half an interval has to be done again on average: {ready} + {redo} = {back}.",),
            ),
            choice(
                id="first",
                prompt="Which change brings the job back soonest?",
                options=tuple(options),
            ),
        ),
    )

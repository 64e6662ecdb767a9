"""All layouts searched: ranked, with reasons for what was turned down, rules of thumb tested, and what would help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardlab.checks import choice, count, positive
from shardlab.hardware import Accelerator, Cluster, Link, Node
from shardlab.models.kernels import CONSTANTS, Constants
from shardlab.models.memory import RECOMPUTATIONS, Recipe
from shardlab.models.plan_layout import Layout, layout_of, problem
from shardlab.models.plan_predict import Prediction, evaluator_for, predict, prediction_of, right_aligned
from shardlab.models.software import DEFAULT_SOFTWARE, Software
from shardlab.models.steptime import SCHEDULES, V_SCHEDULES
from shardlab.transformer import Transformer
from shardlab.units import GB, format_bytes, format_time


@dataclass(frozen=True)
class Rejection:
    """Layouts that were turned down for one reason.

    Attributes:
        reason: a short name.
        count: how many (a degree that cannot divide counts once, before micro-batch and the rest are tried).
        example: one of them.
        message: what is wrong with that one.
    """

    reason: str
    count: int
    example: Layout
    message: str


@dataclass(frozen=True)
class Sensitivity:
    """What 10 % more of one resource does to the winner.

    Attributes:
        resource: a name.
        step_time_s: with 10 % more.
        gain: relative reduction of the step time.
    """

    resource: str
    step_time_s: float
    gain: float


@dataclass(frozen=True)
class RuleTest:
    """A rule of thumb held against all layouts that fit.

    Attributes:
        rule: the rule in words.
        best: the fastest layout that follows it, or None.
        rank: its place in the ranking, 1 for the winner.
        cost: how much slower than the winner, relative.
        holds: whether following it costs at most 1 %.
    """

    rule: str
    best: Layout | None
    rank: int
    cost: float
    holds: bool

    @property
    def text(self) -> str:
        """One sentence."""
        if self.best is None:
            return f"{self.rule}: no layout that fits follows it"
        if self.rank == 1:
            return f"{self.rule}: holds here, the winner follows it"
        word = "holds" if self.holds else "does not hold"
        return f"{self.rule}: {word} here, its best layout ranks {self.rank} and is {100 * self.cost:.1f} % slower"


@dataclass(frozen=True)
class SearchResult:
    """All layouts of one question, ranked.

    Attributes:
        predictions: the fastest layouts that fit, best first (as many as asked for).
        tried: layouts whose memory was computed.
        fitting: those that fit, all ranked.
        rejections: by reason, most frequent first.
        smallest: the fastest layout among those with the least model parallelism that fit, a common first guess, or None.
        smallest_rank: its place in the ranking.
        rules: rules of thumb, tested.
        bottleneck: what holds the winner back, in words.
        sensitivities: 10 % more of each resource, largest gain first.
        closest: the layout that needs the least memory.
        closest_bytes: how much.
        advice: sentences about memory when nothing fits.
    """

    predictions: tuple[Prediction, ...]
    tried: int
    fitting: int
    rejections: tuple[Rejection, ...]
    smallest: Prediction | None
    smallest_rank: int
    rules: tuple[RuleTest, ...]
    bottleneck: str
    sensitivities: tuple[Sensitivity, ...]
    closest: Layout | None
    closest_bytes: float
    advice: tuple[str, ...]

    @property
    def best(self) -> Prediction:
        """The winner.

        Raises:
            ValueError: nothing fits; the message says by how much and what would.
        """
        if not self.predictions:
            raise ValueError(" ".join(self.advice) or "no layout can run: see rejections")
        return self.predictions[0]

    @property
    def text(self) -> str:
        """The ranking, the winner's bottleneck, the first guess, the rules and the rejections, as lines."""
        lines = [f"{self.tried} layouts tried, {self.fitting} fit"]
        if self.smallest is not None:
            lines.append(
                f"first guess, least model parallelism that fits: {self.smallest.layout.text}: "
                f"{format_time(self.smallest.step_time_s)}, rank {self.smallest_rank}"
            )
        for place, made in enumerate(self.predictions):
            lines.append(
                f"{place + 1:3d}. {right_aligned(format_time(made.step_time_s), 9)}  MFU {100 * made.mfu:4.1f} %  "
                f"{made.memory.total_bytes / GB:5.1f} GB  {made.layout.text}"
            )
        if self.predictions:
            lines.append(self.bottleneck)
            lines += [
                f"  10 % more {item.resource}: {100 * item.gain:.1f} % shorter step"
                for item in self.sensitivities
            ]
            lines += ["rule: " + test.text for test in self.rules]
        lines += [
            f"rejected for {item.reason}: {item.count}, such as {item.example.text}: {item.message}"
            for item in self.rejections
        ]
        lines += list(self.advice)
        return "\n".join(lines)


def _divisors(number: int, most: int) -> list[int]:
    return [value for value in range(1, min(number, most) + 1) if number % value == 0]


def _options(name: str, given: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    if given is None:
        return default
    values = (given,) if isinstance(given, int) else tuple(given)
    return tuple([count(name, value) for value in values])


class SearchRun:
    """A search that runs in slices, so that a page stays alive: ``while not run.advance(2000): ...; run.result()``.

    Args: as in :func:`search`.
    """

    def __init__(
        self,
        model: Transformer,
        cluster: Cluster,
        global_batch: int,
        sequence: int,
        software: str | Software = DEFAULT_SOFTWARE,
        recipe: str | Recipe | None = None,
        tensor: Any = None,
        pipeline: Any = None,
        context: Any = None,
        expert: Any = None,
        zero_stages: tuple[int, ...] = (0, 1, 2, 3),
        micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16),
        recomputations: tuple[str, ...] = RECOMPUTATIONS,
        schedules: tuple[str, ...] = ("1f1b", "interleaved-1f1b"),
        sequence_parallel: tuple[bool, ...] = (True, False),
        memory_fraction: float = 1.0,
        constants: Constants = CONSTANTS,
    ) -> None:
        self.evaluator = evaluator_for(model, cluster, global_batch, sequence, software, recipe, constants)
        self.model = model
        self.cluster = cluster
        self.question = (global_batch, sequence, software, recipe, constants)
        gpus = cluster.gpus
        long_context = tuple(_divisors(gpus, 64)) if sequence >= 32_768 else (1,)
        self.tensors = _options(
            "tensor", tensor, tuple(_divisors(gpus, min(model.heads, 2 * cluster.node.gpus)))
        )
        self.pipelines = _options("pipeline", pipeline, tuple(_divisors(gpus, model.layers)))
        self.contexts = _options("context", context, long_context)
        self.experts = _options(
            "expert", expert, tuple(_divisors(model.experts, gpus)) if model.experts else (1,)
        )
        self.zeros = tuple([count("zero_stages", stage, least=0, most=3) for stage in zero_stages])
        self.micro_batches = _options("micro_batches", micro_batches, (1,))
        kinds = tuple([choice("recomputations", kind, RECOMPUTATIONS) for kind in recomputations])
        if self.evaluator.software.flash_attention and "none" in kinds:
            # Flash attention never stores what selective recomputation would drop: the two are one.
            kinds = tuple([kind for kind in kinds if kind != "selective"])
        self.recomputations = kinds
        self.schedules = tuple([choice("schedules", name, SCHEDULES) for name in schedules])
        self.sequence_parallel = tuple([bool(value) for value in sequence_parallel])
        self.limit = self.evaluator.capacity * positive("memory_fraction", memory_fraction)
        self.tried = 0
        self.fitting: list[Any] = []
        self.nearly: list[Any] = []
        self.rejected: dict[str, list[Any]] = {}
        self.least_memory: tuple[float, Any] | None = None
        self._untried = self._keys()
        self.done = False

    def advance(self, layouts: int = 2000) -> bool:
        """Try about that many more layouts; True when all have been tried."""
        goal = self.tried + count("layouts", layouts)
        while not self.done and self.tried < goal:
            try:
                key = next(self._untried)
            except StopIteration:
                self.done = True
                break
            self._try(key)
        return self.done

    def _reject(self, found: tuple[str, str], key: Any) -> None:
        entry = self.rejected.get(found[0])
        if entry is None:
            self.rejected[found[0]] = [1, key, found[1]]
        else:
            entry[0] += 1

    def _degrees(self) -> Any:
        gpus = self.cluster.gpus
        for tensor in self.tensors:
            for pipeline in self.pipelines:
                for context in self.contexts:
                    if gpus % (tensor * pipeline * context):
                        continue
                    for expert in self.experts:
                        yield gpus // (tensor * pipeline * context), tensor, pipeline, context, expert

    def _pipelines(self, pipeline: int) -> list[tuple[str, int]]:
        """(schedule, chunks) to try."""
        if pipeline == 1:
            return [("1f1b", 1)]
        per_stage = self.model.layers // pipeline
        found: list[tuple[str, int]] = []
        for name in self.schedules:
            if name == "interleaved-1f1b":
                found += [(name, chunks) for chunks in _divisors(per_stage, 8) if chunks > 1]
            elif name in V_SCHEDULES:
                if per_stage % 2 == 0:
                    found.append((name, 2))
            else:
                found.append((name, 1))
        return found

    def _divides(self, key: Any) -> bool:
        found = problem(
            self.model, self.cluster.gpus, self.evaluator.global_batch, self.evaluator.sequence, key
        )
        if found is not None:
            self._reject(found, key)
        return found is None

    def _keys(self) -> Any:
        """Keys of the layouts that divide; the others are rejected once, at the first choice that does not."""
        for degrees in self._degrees():
            data, tensor, pipeline, context, _ = degrees
            rest: Any = (0, 1, "none", False, "1f1b", 1)
            if not self._divides(degrees + rest):
                continue
            stages = self.zeros if data * context > 1 else (0,)
            for schedule, chunks in self._pipelines(pipeline):
                for micro_batch in self.micro_batches:
                    rest = (0, micro_batch, "none", False, schedule, chunks)
                    if not self._divides(degrees + rest):
                        continue
                    for flag in self.sequence_parallel if tensor > 1 else (False,):
                        rest = (0, micro_batch, "none", flag, schedule, chunks)
                        if flag and not self._divides(degrees + rest):
                            continue
                        for recompute in self.recomputations:
                            for zero in stages:
                                rest = (zero, micro_batch, recompute, flag, schedule, chunks)
                                yield degrees + rest

    def _try(self, key: Any) -> None:
        """Hold one layout against the memory; time it if it fits, or would with 10 % more."""
        self.tried += 1
        need = 0.0
        for part in self.evaluator.memory(*key):
            need += part
        if self.least_memory is None or need < self.least_memory[0]:
            self.least_memory = (need, key)
        if need <= self.limit:
            self.fitting.append((self.evaluator.times(*key)[0], key))
            return
        if need <= 1.1 * self.limit:
            self.nearly.append((self.evaluator.times(*key)[0], key))
        entry = self.rejected.get("memory")
        if entry is None:
            self.rejected["memory"] = [1, key, "", need]
            return
        entry[0] += 1
        if need < entry[3]:
            # The example is the layout that comes closest.
            entry[1], entry[3] = key, need

    # ------------------------------------------------------------ results

    def result(self, top: int = 10) -> SearchResult:
        """The ranking of what has been tried so far, with reasons, rules and sensitivities of the winner."""
        ranked = sorted(self.fitting)
        predictions = tuple([self._predict(key) for _, key in ranked[: count("top", top)]])
        rules, smallest, smallest_rank = self._rules(ranked)
        bottleneck = ""
        sensitivities: tuple[Sensitivity, ...] = ()
        if predictions:
            sensitivities = self._sensitivities(predictions[0])
            bottleneck = _bottleneck(predictions[0], sensitivities)
        return SearchResult(
            predictions=predictions,
            tried=self.tried,
            fitting=len(ranked),
            rejections=self._rejections(),
            smallest=smallest,
            smallest_rank=smallest_rank,
            rules=rules,
            bottleneck=bottleneck,
            sensitivities=sensitivities,
            closest=layout_of(self.least_memory[1]) if self.least_memory else None,
            closest_bytes=self.least_memory[0] if self.least_memory else math.inf,
            advice=() if predictions else self._advice(),
        )

    def _predict(self, key: Any) -> Prediction:
        return prediction_of(self.evaluator, layout_of(key))

    def _rejections(self) -> tuple[Rejection, ...]:
        found = []
        for reason in sorted(self.rejected):
            entry = self.rejected[reason]
            message = entry[2]
            if reason == "memory":
                lacking = entry[3] - self.limit
                # "0.00 GB" would say nothing.
                short = f"{lacking / GB:.2f} GB" if lacking >= 0.01 * GB else format_bytes(lacking, 2)
                message = (
                    f"needs {entry[3] / GB:.2f} GB of {self.limit / GB:.0f} GB, short by {short}; "
                    "no other rejected layout comes closer"
                )
            found.append(
                Rejection(reason=reason, count=entry[0], example=layout_of(entry[1]), message=message)
            )
        return tuple(sorted(found, key=lambda item: -item.count))

    def _rules(self, ranked: list[Any]) -> tuple[tuple[RuleTest, ...], Prediction | None, int]:
        if not ranked:
            return (), None, 0
        node = self.cluster.node.gpus
        widest = max([tensor for tensor in self.tensors if tensor <= node])
        least = min([key[1] * key[2] * key[3] for _, key in ranked])
        largest: dict[Any, int] = {}
        for _, key in ranked:
            group = key[:6] + key[7:]
            largest[group] = max(largest.get(group, 0), key[6])
        batch = self.evaluator.global_batch
        rules: Any = (
            (
                "use the least model parallelism that fits",
                lambda key: key[1] * key[2] * key[3] == least,
            ),
            (
                "fill the node with tensor parallelism before using a pipeline",
                lambda key: key[2] == 1 or key[1] >= widest,
            ),
            ("keep tensor parallelism within a node", lambda key: key[1] <= node),
            ("use no pipeline when the model fits without", lambda key: key[2] == 1),
            ("recompute nothing when it fits", lambda key: key[7] == "none"),
            ("stop at ZeRO-1", lambda key: key[5] <= 1),
            (
                "take the largest micro-batch that fits",
                lambda key: key[6] == largest[key[:6] + key[7:]],
            ),
            (
                "run at least four micro-batches per pipeline stage",
                lambda key: key[2] == 1 or batch // (key[0] * key[6]) >= 4 * key[2],
            ),
            ("add sequence parallelism to tensor parallelism", lambda key: key[1] == 1 or key[8]),
        )
        tests = []
        for name, follows in rules:
            place = 0
            for index, (_, key) in enumerate(ranked):
                if follows(key):
                    place = index + 1
                    break
            cost = ranked[place - 1][0] / ranked[0][0] - 1 if place else math.inf
            tests.append(
                RuleTest(
                    rule=name,
                    best=layout_of(ranked[place - 1][1]) if place else None,
                    rank=place,
                    cost=cost,
                    holds=cost <= 0.01,
                )
            )
        # Some layout always has the least model parallelism: the first rule's answer is the usual first guess.
        rank = tests[0].rank
        return tuple(tests), self._predict(ranked[rank - 1][1]), rank

    def _sensitivities(self, winner: Prediction) -> tuple[Sensitivity, ...]:
        batch, sequence, software, recipe, constants = self.question
        found = []
        for resource in RESOURCES:
            scaled = scaled_cluster(self.cluster, resource, 1.1)
            seconds = predict(
                self.model, scaled, winner.layout, batch, sequence, software, recipe, constants
            ).step_time_s
            found.append(
                Sensitivity(resource=resource, step_time_s=seconds, gain=1 - seconds / winner.step_time_s)
            )
        # More memory does not speed a layout up: it lets other layouts in.
        seconds = min([winner.step_time_s] + [time for time, _ in self.nearly])
        found.append(
            Sensitivity(
                resource="memory capacity", step_time_s=seconds, gain=1 - seconds / winner.step_time_s
            )
        )
        return tuple(sorted(found, key=lambda item: -item.gain))

    def _advice(self) -> tuple[str, ...]:
        if self.least_memory is None:
            return ("No layout can run: the degrees, batch or sequence do not divide (see rejections).",)
        need, key = self.least_memory
        device = self.cluster.node.accelerator
        words = [
            f"No layout fits in {self.limit / GB:.0f} GB: the leanest, {layout_of(key).text}, needs {need / GB:.1f} GB "
            f"per GPU, {(need - self.limit) / GB:.1f} GB more than {device.name} offers."
        ]
        node = self.cluster.node
        batch, sequence, software, recipe, constants = self.question
        gpus = self.cluster.gpus
        for _ in range(10):
            gpus *= 2
            if gpus > node.gpus and gpus % node.gpus:
                continue
            larger = Cluster(name=node.name, node=node, gpus=gpus)
            if _fits_somewhere(self.model, larger, batch, sequence, software, recipe, constants, self.limit):
                words.append(f"{gpus} GPUs of this kind would fit it.")
                break
        return tuple(words)


def _fits_somewhere(
    model: Transformer,
    cluster: Cluster,
    batch: int,
    sequence: int,
    software: str | Software,
    recipe: str | Recipe | None,
    constants: Constants,
    limit: float,
) -> bool:
    """Whether any layout fits; memory only, with the leanest settings."""
    evaluator = evaluator_for(model, cluster, batch, sequence, software, recipe, constants)
    gpus = cluster.gpus
    for tensor in _divisors(gpus, min(model.heads, 2 * cluster.node.gpus)):
        for pipeline in _divisors(gpus // tensor, model.layers):
            data = gpus // (tensor * pipeline)
            for expert in _divisors(model.experts, data) if model.experts else [1]:
                for zero in (1, 3):
                    key = (data, tensor, pipeline, 1, expert, zero, 1, "full", tensor > 1, "1f1b", 1)
                    if problem(model, gpus, batch, sequence, key):
                        continue
                    need = 0.0
                    for part in evaluator.memory(*key):
                        need += part
                    if need <= limit:
                        return True
    return False


def search(
    model: Transformer,
    cluster: Cluster,
    global_batch: int,
    sequence: int,
    software: str | Software = DEFAULT_SOFTWARE,
    recipe: str | Recipe | None = None,
    tensor: Any = None,
    pipeline: Any = None,
    context: Any = None,
    expert: Any = None,
    zero_stages: tuple[int, ...] = (0, 1, 2, 3),
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16),
    recomputations: tuple[str, ...] = RECOMPUTATIONS,
    schedules: tuple[str, ...] = ("1f1b", "interleaved-1f1b"),
    sequence_parallel: tuple[bool, ...] = (True, False),
    memory_fraction: float = 1.0,
    constants: Constants = CONSTANTS,
    top: int = 10,
) -> SearchResult:
    """Every layout of these options, ranked by predicted step time, with reasons for what was turned down.

    Args:
        model, cluster, global_batch, sequence, software, recipe, constants: as in :func:`predict`.
        tensor, pipeline, context, expert: degrees to try, a number or several. By default every divisor of the GPUs:
            tensor up to two nodes, pipeline up to one layer per stage, expert up to all experts; context only for
            sequences of 32,768 tokens and more.
        zero_stages, micro_batches, recomputations, schedules, sequence_parallel: values to try. Interleaved chunks are
            all divisors of a stage's layers up to 8.
        memory_fraction: share of the device's memory that may be used.
        top: predictions to return in full.

    Raises:
        ValueError: an option is unknown or out of range. When nothing fits the result says so, and its
            ``best`` raises.
    """
    run = SearchRun(
        model,
        cluster,
        global_batch,
        sequence,
        software,
        recipe,
        tensor,
        pipeline,
        context,
        expert,
        zero_stages,
        micro_batches,
        recomputations,
        schedules,
        sequence_parallel,
        memory_fraction,
        constants,
    )
    while not run.advance(100_000):
        pass
    return run.result(top)


# ---------------------------------------------------------------- what would move it

RESOURCES = ("matmul rate", "memory bandwidth", "link in the node", "network")


def scaled_cluster(cluster: Cluster, resource: str, factor: float) -> Cluster:
    """The cluster with ``factor`` times one resource of :data:`RESOURCES` (bandwidths; latencies stay).

    Raises:
        ValueError: an unknown resource, or a factor that is not above 0.
    """
    kind = choice("resource", resource, RESOURCES)
    times = positive("factor", factor)
    node, chip = cluster.node, cluster.node.accelerator
    compute = times if kind == "matmul rate" else 1.0
    accelerator = Accelerator(
        name=chip.name,
        peak_flops=chip.peak_flops * compute,
        matmul_flops=chip.matmul_flops * compute,
        sustained=chip.sustained,
        memory_bytes=chip.memory_bytes,
        memory_bandwidth=chip.memory_bandwidth * (times if kind == "memory bandwidth" else 1.0),
        source=chip.source,
    )
    return Cluster(
        name=cluster.name,
        node=Node(
            name=node.name,
            accelerator=accelerator,
            gpus=node.gpus,
            intra=_scaled_link(node.intra, times if kind == "link in the node" else 1.0),
            nics=node.nics,
            nic=_scaled_link(node.nic, times if kind == "network" else 1.0),
            source=node.source,
        ),
        gpus=cluster.gpus,
    )


def _scaled_link(link: Link, factor: float) -> Link:
    return Link(
        name=link.name,
        bandwidth=link.bandwidth * factor,
        latency_s=link.latency_s,
        efficiency=link.efficiency,
        source=link.source,
    )


def _bottleneck(winner: Prediction, sensitivities: tuple[Sensitivity, ...]) -> str:
    lost = sorted([(seconds, label) for label, seconds in winner.items if label != "layers"], reverse=True)
    seconds, label = lost[0]
    share = 100 * winner.seconds("layers") / winner.step_time_s
    best = sensitivities[0]
    words = (
        f"{share:.0f} % of the step is the layers' own arithmetic and memory traffic; the largest loss is {label} "
        f"({format_time(seconds)}, {100 * seconds / winner.step_time_s:.1f} %). "
    )
    if best.gain < 0.001:
        return words + "10 % more of any one resource gains less than 0.1 %."
    return words + f"10 % more {best.resource} gains most: {100 * best.gain:.1f} %."

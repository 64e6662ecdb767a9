"""Fit the constants of shardlab.models.kernels once, on a named subset, and show how well they carry over.

    python tools/fit_constants.py --vtrain ../shared/data/vtrain/measured_iterations.csv

Needs numpy and scipy, which the package itself does not. Fitted on: the ten layer times of Korthikanti's Table 4, the
530B step on 2,240 GPUs of its section 6.3, and rows 1, 3, 5, ... (44 of 88) of vTrain's measurements. Everything else
that is printed is a prediction. Cross-validation refits without a model size, without a layout, or on the other half.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import math
from pathlib import Path

from scipy.optimize import least_squares

from shardlab.hardware import cluster
from shardlab.models import plan
from shardlab.models.kernels import CONSTANTS, Constants, layer_time
from shardlab.models.published import (
    PublishedStep,
    korthikanti_data_parallel_step,
    korthikanti_layer_times,
    korthikanti_steps,
    llama3_steps,
    megascale_steps,
    mt_nlg_steps,
    sc21_steps,
    sc21_table2_steps,
    sc21_zero3_steps,
    vtrain_step,
)
from shardlab.models.software import Software, software_named
from shardlab.transformer import preset

# name -> (lowest, highest): wide, physically possible ranges
BOUNDS = {
    "matmul_efficiency": (0.7, 1.1),
    "memory_efficiency": (0.5, 0.95),
    "sequence_parallel_factor": (1.0, 1.5),
    "tensor_overlap": (0.0, 1.0),
    "gradient_efficiency": (0.2, 1.0),
    "layer_overhead_s": (0.0, 3e-3),
    "shared_node_slowdown": (0.0, 0.3),
}
SOFTWARE_FIELDS = ("layer_overhead_s", "shared_node_slowdown")


def with_values(values: dict[str, float]) -> tuple[Constants, Software]:
    """The constants and the DeepSpeed software record with these values in place."""
    constants = dataclasses.replace(
        CONSTANTS, **{name: value for name, value in values.items() if name not in SOFTWARE_FIELDS}
    )
    software = dataclasses.replace(
        software_named("megatron-deepspeed"),
        **{name: value for name, value in values.items() if name in SOFTWARE_FIELDS},
    )
    return constants, software


def relative_error(step: PublishedStep, constants: Constants, deepspeed: Software) -> float:
    software = deepspeed if step.software == deepspeed.name else software_named(step.software)
    return plan.predict_published(step, software=software, constants=constants).step_time_s / step.step_s - 1


def layer_residuals(constants: Constants) -> list[float]:
    """Log errors of the ten layer times of Korthikanti's Table 4."""
    model, where = preset("korthikanti-22b"), cluster("dgx-a100", 8)
    errors = []
    for recompute, sequence_parallel, forward_s, backward_s in korthikanti_layer_times():
        one = layer_time(
            model,
            where,
            software_named("megatron-2022"),
            sequence=2048,
            micro_batch=4,
            tensor=8,
            sequence_parallel=sequence_parallel,
            recompute=recompute,
            constants=constants,
        )
        backward = one.backward_input + one.backward_weight + one.recompute
        backward += one.tensor_backward - one.tensor_hidden
        errors.append(math.log((one.forward + one.tensor_forward) / forward_s))
        errors.append(math.log(backward / backward_s))
    return errors


def fit(steps: list[PublishedStep]) -> dict[str, float]:
    """Constants that minimise a robust (Cauchy, 6 %) sum of log errors over Table 4 and ``steps``."""
    names = list(BOUNDS)

    def values(unit: list[float]) -> dict[str, float]:
        return {
            name: BOUNDS[name][0] + (BOUNDS[name][1] - BOUNDS[name][0]) * float(x)
            for name, x in zip(names, unit, strict=True)
        }

    def residuals(unit: list[float]) -> list[float]:
        constants, software = with_values(values(unit))
        errors = [math.log(1 + relative_error(step, constants, software)) for step in steps]
        return errors + layer_residuals(constants)

    best = min(
        (
            least_squares(
                residuals, [start] * len(names), bounds=(0, 1), loss="cauchy", f_scale=0.06, diff_step=1e-3
            )
            for start in (0.35, 0.65)
        ),
        key=lambda found: found.cost,
    )
    return values(list(best.x))


def describe(errors: list[float]) -> str:
    ordered = sorted(abs(100 * error) for error in errors)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    bias = 100 * sum(errors) / len(errors)
    return (
        f"{len(errors):3d} rows  mean {sum(ordered) / len(ordered):5.2f} %  median {middle:5.2f} %  "
        f"max {ordered[-1]:5.1f} %  bias {bias:+5.2f} %"
    )


def report(title: str, steps: list[PublishedStep], values: dict[str, float], every: bool = False) -> None:
    constants, software = with_values(values)
    errors = [relative_error(step, constants, software) for step in steps]
    print(f"{title:52s} {describe(errors)}")
    if every:
        for step, error in zip(steps, errors, strict=True):
            print(f"    {step.label:28s} measured {step.step_s:8.3f} s   error {100 * error:+6.1f} %")


def current() -> dict[str, float]:
    """The values that the package ships."""
    software = software_named("megatron-deepspeed")
    return {
        name: getattr(software, name) if name in SOFTWARE_FIELDS else getattr(CONSTANTS, name)
        for name in BOUNDS
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vtrain", type=Path, required=True, help="measured_iterations.csv")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--no-cross-validation", action="store_true")
    arguments = parser.parse_args()
    with arguments.vtrain.open(newline="") as file:
        vtrain = [vtrain_step(row) for row in csv.DictReader(file)]
    across = [korthikanti_data_parallel_step()]
    fitted_rows, other_rows = vtrain[0::2], vtrain[1::2]

    print("fitting ...")
    found = fit(fitted_rows + across)
    shipped = current()
    print(f"{'constant':28s} {'fitted':>10s} {'shipped':>10s}")
    for name, value in found.items():
        print(f"{name:28s} {value:10.5g} {shipped[name]:10.5g}")

    print("\nwith the shipped constants")
    constants, _ = with_values(shipped)
    print(
        f"{'Korthikanti Table 4, layer times (fitted)':52s} {describe([math.exp(e) - 1 for e in layer_residuals(constants)])}"
    )
    report("vTrain rows 1, 3, 5, ... (fitted)", fitted_rows, shipped, arguments.rows)
    report("vTrain rows 2, 4, 6, ... (predicted)", other_rows, shipped, arguments.rows)
    report("vTrain, all", vtrain, shipped)
    report("Korthikanti 530B on 2,240 GPUs (fitted)", across, shipped)
    report("Korthikanti Table 5 (predicted)", list(korthikanti_steps()), shipped, arguments.rows)
    report("SC21 Table 1 (predicted)", list(sc21_steps()), shipped, arguments.rows)
    report("SC21 Table 2, PTD-P (predicted)", list(sc21_table2_steps()), shipped, arguments.rows)
    report("MegaScale Table 2, Megatron rows (predicted)", list(megascale_steps()), shipped, arguments.rows)
    report("Llama 3 Table 4, 8,192 tokens (row 1 fitted)", list(llama3_steps()), shipped, True)
    report("SC21 Table 2, ZeRO-3 (predicted)", list(sc21_zero3_steps()), shipped, True)
    report("MT-NLG (predicted)", list(mt_nlg_steps()), shipped, True)
    for slow in (False, True):
        part = [s for s in vtrain if (s.pipeline > 1 and 1 < s.tensor < 8) == slow]
        report("vTrain, pipelines with TP 2 or 4" if slow else "vTrain, all other layouts", part, shipped)

    if arguments.no_cross_validation:
        return
    print("\ncross-validation on vTrain (each row predicted by a fit that has not seen its group)")
    kinds = (
        ("other half", lambda index, step: str(index % 2)),
        ("leave one model size out", lambda index, step: step.model.name),
        (
            "leave one (TP, PP, DP) out",
            lambda index, step: f"{step.model.name} {step.tensor} {step.pipeline} {step.data}",
        ),
    )
    for title, group_of in kinds:
        keys = [group_of(index, step) for index, step in enumerate(vtrain)]
        groups = sorted(set(keys))
        if len(groups) > 12:  # bundle into ten folds of whole groups
            folds = [set(groups[start::10]) for start in range(10)]
        else:
            folds = [{key} for key in groups]
        errors = []
        for fold in folds:
            kept = [step for step, key in zip(vtrain, keys, strict=True) if key not in fold]
            constants, software = with_values(fit(kept + across))
            for step, key in zip(vtrain, keys, strict=True):
                if key in fold:
                    errors.append(relative_error(step, constants, software))
        print(f"{title:52s} {describe(errors)}")


if __name__ == "__main__":
    main()

"""Checks a TrainJob or a JobSet as the cluster would, without a cluster; each problem begins with the path of its key.

Types and required keys come from the operators' own models (kubeflow_trainer_api). Those ignore keys that they don't
know, as a misspelt one, so this goes through them key by key. The Job inside a JobSet is held against Kubernetes' own
strict schema, and the numbers of nodes and ranks against what torchrun is told.
"""

from __future__ import annotations

import json
import re
import types
import typing
from typing import Any

import kubernetes_validate
from kubeflow_trainer_api import models
from pydantic import BaseModel, TypeAdapter, ValidationError

KINDS: dict[tuple[str, str], type[BaseModel]] = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): models.JobsetV1alpha2JobSet,
}
KUBERNETES = "1.33"


def problems(manifest: Any) -> list[str]:
    """What is wrong with a manifest; empty if nothing is."""
    if not isinstance(manifest, dict):
        return ["manifest: must be a mapping"]
    kind = (manifest.get("apiVersion"), manifest.get("kind"))
    if kind not in KINDS:
        known = ", ".join([" ".join(pair) for pair in KINDS])
        return [f"kind: must be one of {known}, not {kind[0]} {kind[1]}"]
    found = _against_model(KINDS[kind], manifest, "")
    if not found and kind[1] == "JobSet":
        found = _embedded_jobs(manifest)
    return found or _counts(manifest)


# ---- keys and types ----


def _against_model(model: type[BaseModel], value: Any, path: str) -> list[str]:
    if "actual_instance" in model.model_fields:
        # One of several types, such as a number or a quantity with a unit.
        try:
            model.from_json(json.dumps(value))  # type: ignore[attr-defined]
        except ValueError:
            return [f"{path}: {value!r} is none of the types that are allowed here"]
        return []
    if not isinstance(value, dict):
        return [f"{path}: must be a mapping, not {value!r}"]
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    found = [
        f"{_below(path, key)}: is not known; known here: {', '.join(fields)}"
        for key in value
        if key not in fields
    ]
    for key, field in fields.items():
        if key in value:
            found += _against_type(field.annotation, value[key], _below(path, key))
            found += _against_choices(field.description or "", value[key], _below(path, key))
        elif field.is_required():
            found.append(f"{_below(path, key)}: is missing")
    return found


def _against_type(wanted: Any, value: Any, path: str) -> list[str]:
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType) and type(None) in inner:
        # Optional: the key may be missing; a null is a slip.
        (wanted,) = [one for one in inner if one is not type(None)]
        return _against_type(wanted, value, path)
    if origin is list and isinstance(value, list):
        return [
            text for i, item in enumerate(value) for text in _against_type(inner[0], item, f"{path}[{i}]")
        ]
    if origin is dict and isinstance(value, dict):
        return [
            text for key, item in value.items() for text in _against_type(inner[1], item, _below(path, key))
        ]
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _against_model(wanted, value, path)
    try:
        TypeAdapter(wanted).validate_python(value)
    except ValidationError as error:
        return [f"{path}: {error.errors()[0]['msg']}, not {value!r}"]
    return []


def _against_choices(description: str, value: Any, path: str) -> list[str]:
    """The API has closed lists of words, but says so in words alone: ``Possible enum values:  - `"Never"` means ...``."""
    choices = re.findall(r'- `"([^"]*)"`', description.partition("Possible enum values")[2])
    if choices and isinstance(value, str) and value not in choices:
        return [f"{path}: must be one of {', '.join(choices)}, not {value!r}"]
    return []


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _embedded_jobs(manifest: dict[str, Any]) -> list[str]:
    found = []
    for index, replicated in enumerate(manifest["spec"]["replicatedJobs"]):
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"], **replicated["template"].get("metadata", {})},
            "spec": replicated["template"].get("spec", {}),
        }
        try:
            kubernetes_validate.validate(job, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = "".join([f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path])
            found.append(f"spec.replicatedJobs[{index}].template{place}: {error.message}")
    return found


# ---- numbers of nodes and ranks ----


def _counts(manifest: dict[str, Any]) -> list[str]:
    if manifest["kind"] == "TrainJob":
        trainer = manifest["spec"].get("trainer", {})
        nodes, ranks = trainer.get("numNodes", 1), trainer.get("numProcPerNode", 1)
        return _lab_ranks(trainer.get("command", []), nodes * ranks, "spec.trainer.command")
    found = []
    for index, replicated in enumerate(manifest["spec"]["replicatedJobs"]):
        path = f"spec.replicatedJobs[{index}].template.spec"
        job = replicated["template"]["spec"]
        pods = job.get("parallelism", 1)
        if job.get("completions", 1) != pods:
            found.append(
                f"{path}.completions: must be {pods}, as parallelism: the nodes run at the same time"
            )
        nodes = replicated.get("replicas", 1) * pods
        for place, container in enumerate(job["template"]["spec"]["containers"]):
            found += _torchrun(
                container.get("command", []), nodes, f"{path}.template.spec.containers[{place}].command"
            )
    return found + _endpoints(manifest)


def _torchrun(command: list[str], nodes: int, path: str) -> list[str]:
    told = _option(command, "--nnodes")
    if told is not None and int(told) != nodes:
        return [f"{path}: --nnodes must be {nodes}, the number of pods, not {told}"]
    return _lab_ranks(command, nodes * int(_option(command, "--nproc-per-node") or 1), path)


def _lab_ranks(command: list[str], ranks: int, path: str) -> list[str]:
    told = _option(command, "--ranks")
    if told is not None and int(told) != ranks:
        return [f"{path}: --ranks must be {ranks}, nodes times ranks on each, not {told}"]
    return []


def _endpoints(manifest: dict[str, Any]) -> list[str]:
    """The rendezvous must be a pod of this JobSet: <jobset>-<job>-<replica>-<pod>.<subdomain>."""
    name = manifest["metadata"]["name"]
    domain = manifest["spec"].get("network", {}).get("subdomain", name)
    found = []
    for index, replicated in enumerate(manifest["spec"]["replicatedJobs"]):
        for container in replicated["template"]["spec"]["template"]["spec"]["containers"]:
            endpoint = _option(container.get("command", []), "--rdzv-endpoint")
            hosts = f"{name}-{replicated['name']}-0-0.{domain}"
            if endpoint is not None and not re.fullmatch(re.escape(hosts) + r":\d+", endpoint):
                found.append(
                    f"spec.replicatedJobs[{index}]: --rdzv-endpoint must be {hosts}:PORT, its first pod, not {endpoint}"
                )
    return found


def _option(command: list[str], name: str) -> str | None:
    """The value of an option, as ``--name=value`` or ``--name value``."""
    for index, word in enumerate(command):
        if word == name:
            return command[index + 1] if index + 1 < len(command) else ""
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None

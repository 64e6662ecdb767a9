"""The shipped manifests against the operators' own models, and what a slip in them says."""

import copy
from pathlib import Path

import pytest
import yaml

from tests.launch import manifest_check
from tests.launch.manifest_check import problems

LAUNCH = Path(__file__).parents[2] / "launch"
POD = "spec.replicatedJobs[0].template.spec.template.spec"


def load(name):
    return yaml.safe_load((LAUNCH / name).read_text())


def changed(name, path, value):
    """A manifest with one key set, or with ``...`` removed."""
    manifest = copy.deepcopy(load(name))
    place = manifest
    *way, last = path
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return manifest


def test_every_manifest_is_sound():
    names = sorted([file.name for file in LAUNCH.glob("*.yaml")])
    assert names == ["jobset.yaml", "trainjob.yaml"]
    for name in names:
        assert problems(load(name)) == []


JOB = ("spec", "replicatedJobs", 0, "template", "spec")
CONTAINER = (*JOB, "template", "spec", "containers", 0)


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        # Misspelt: the operators' own models let each of these pass.
        (
            "trainjob.yaml",
            ("spec", "trainer", "numNode"),
            2,
            "spec.trainer.numNode: is not known; known here: args",
        ),
        ("trainjob.yaml", ("spec", "runtimeref"), {}, "spec.runtimeref: is not known"),
        ("trainjob.yaml", ("metadata", "nmae"), "x", "metadata.nmae: is not known"),
        (
            "jobset.yaml",
            ("spec", "failurePolicy", "maxrestarts"),
            3,
            "spec.failurePolicy.maxrestarts: is not known",
        ),
        ("jobset.yaml", (*CONTAINER, "comand"), [], f"{POD}.containers[0].comand: is not known"),
        (
            "jobset.yaml",
            (*JOB, "backofflimit"),
            0,
            "spec.replicatedJobs[0].template.spec.backofflimit: is not known",
        ),
        # Missing.
        ("trainjob.yaml", ("spec", "runtimeRef"), ..., "spec.runtimeRef: is missing"),
        ("jobset.yaml", (*CONTAINER, "name"), ..., f"{POD}.containers[0].name: is missing"),
        (
            "jobset.yaml",
            ("spec", "replicatedJobs", 0, "name"),
            ...,
            "spec.replicatedJobs[0].name: is missing",
        ),
        # Of the wrong type.
        (
            "trainjob.yaml",
            ("spec", "trainer", "numNodes"),
            "2",
            "spec.trainer.numNodes: Input should be a valid int",
        ),
        (
            "trainjob.yaml",
            ("spec", "trainer", "command", 6),
            4,
            "spec.trainer.command[6]: Input should be a valid str",
        ),
        ("trainjob.yaml", ("spec", "trainer"), [], "spec.trainer: must be a mapping, not []"),
        ("trainjob.yaml", ("spec", "trainer", "env"), None, "spec.trainer.env: Input should be a valid list"),
        (
            "jobset.yaml",
            (*JOB, "parallelism"),
            2.5,
            "spec.replicatedJobs[0].template.spec.parallelism: Input should",
        ),
        (
            "jobset.yaml",
            ("spec", "network", "enableDNSHostnames"),
            "yes",
            "spec.network.enableDNSHostnames: Input",
        ),
        (
            "jobset.yaml",
            (*CONTAINER, "resources", "limits", "cpu"),
            [],
            f"{POD}.containers[0].resources.limits.cpu: [] is none of the types",
        ),
        # Right in type, but not what Kubernetes takes.
        (
            "jobset.yaml",
            (*JOB, "completionMode"),
            "indexed",
            "spec.replicatedJobs[0].template.spec.completionMode: must be one of Indexed, NonIndexed, not 'indexed'",
        ),
        # Numbers that don't fit each other.
        ("trainjob.yaml", ("spec", "trainer", "numNodes"), 3, "spec.trainer.command: --ranks must be 6"),
        (
            "jobset.yaml",
            (*JOB, "completions"),
            3,
            "spec.replicatedJobs[0].template.spec.completions: must be 2",
        ),
        (
            "jobset.yaml",
            (*CONTAINER, "command", 1),
            "--nnodes=3",
            f"{POD}.containers[0].command: --nnodes must be 2",
        ),
        (
            "jobset.yaml",
            ("spec", "replicatedJobs", 0, "replicas"),
            2,
            "--nnodes must be 4, the number of pods, not 2",
        ),
        (
            "jobset.yaml",
            ("metadata", "name"),
            "other",
            "spec.replicatedJobs[0]: --rdzv-endpoint must be other-node-0-0.other:PORT",
        ),
        ("jobset.yaml", ("kind",), "JobSets", "kind: must be one of trainer.kubeflow.org/v1alpha1 TrainJob"),
    ],
)
def test_a_slip_is_told_with_its_path(name, path, value, message):
    found = problems(changed(name, path, value))
    assert len(found) == 1, found
    assert message in found[0]


def test_no_manifest_at_all():
    assert problems(None) == ["manifest: must be a mapping"]
    assert problems({})[0].startswith("kind: must be one of")


def test_all_problems_are_told_at_once():
    manifest = changed("jobset.yaml", (*CONTAINER, "comand"), [])
    manifest["spec"]["sucessPolicy"] = {}
    assert [text.partition(":")[0] for text in problems(manifest)] == [
        "spec.sucessPolicy",
        f"{POD}.containers[0].comand",
    ]


def test_kubernetes_own_schema_is_asked_too():
    manifest = changed("jobset.yaml", (*CONTAINER, "comand"), [])
    (found,) = manifest_check._embedded_jobs(manifest)
    assert found.startswith(f"{POD}.containers[0]: ")
    assert "comand" in found

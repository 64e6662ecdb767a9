"""The bug lab: faults are seen, right answers pass, plausible wrong ones don't, and a bad file gets a sentence."""

import ast
import dataclasses
import importlib
import re

import pytest
from typer.testing import CliRunner

from shardlab import labs
from shardlab.cli import app
from shardlab.labs.bugs import BUGS, NAMES, bug_named
from shardlab.labs.find_the_bug import AS_FOUND, REFERENCE, YOURS, FindTheBugRun, ProgramRow, Sight
from shardlab.labs.run import LabError, run

# The package gives the lab itself under this name.
FRONT = importlib.import_module("shardlab.labs.find_the_bug")
HUNG = "waits in all_reduce #3"
HANGING = [bug.name for bug in BUGS if bug.hangs]


@pytest.fixture(scope="module")
def measured():
    """One run of the lab for all tests that look at a result."""
    for _ in range(3):
        run = labs.find_the_bug(ranks=4, limit_s=600, show=False)
        # On a machine that has just become busy the time may be up before the program hangs: once more.
        if all(HUNG in (row.stopped or HUNG) for row in run.programs):
            break
    return run


@pytest.fixture(scope="module")
def recorded():
    return labs.find_the_bug.load_recording()


# ---- the programs as found, and fixed ----


@pytest.mark.torch
def test_every_fault_is_seen_and_every_fix_passes(measured):
    assert measured.failed_checks() == []
    assert measured.passed
    found = {row.bug: row for row in measured.programs if row.version == AS_FOUND}
    fixed = {row.bug: row for row in measured.programs if row.version == REFERENCE}
    assert tuple(found) == tuple(fixed) == NAMES
    assert not any(row.right for row in found.values())
    assert all(row.right for row in fixed.values())


@pytest.mark.torch
def test_only_the_program_that_should_hang_hangs(measured):
    stopped = [row for row in measured.programs if row.stopped is not None]
    assert [row.bug for row in stopped] == HANGING
    assert [row.version for row in stopped] == [AS_FOUND]
    # The runner says where each rank waits; on a busy machine one may not answer in time.
    assert re.findall(r"rank (\d): ", stopped[0].stopped) == ["0", "1", "2", "3"]
    files = set(re.findall(r"rank \d: (\w+\.py) line", stopped[0].stopped))
    assert "unequal_collectives.py" in files
    assert files <= {"unequal_collectives.py", "trials.py"}
    assert HUNG in stopped[0].stopped


@pytest.mark.torch
def test_a_run_survives_json(measured):
    assert FindTheBugRun.from_json(measured.to_json()) == measured


@pytest.mark.torch
def test_two_ranks_see_every_silent_fault_too(family):
    jobs = [{"bug": bug.name, "version": AS_FOUND, "file": str(bug.program)} for bug in BUGS if not bug.hangs]
    for row in tried(jobs, ranks=2):
        assert not row.right, row.bug


# ---- answers, right and wrong ----


def tried(jobs, ranks):
    outcome = run("shardlab.labs.bugs.worker:worker", ranks, {"jobs": jobs}, limit_s=600, show=False)
    return [
        ProgramRow(row["bug"], row["version"], ranks, tuple([Sight(**sight) for sight in row["sights"]]))
        for row in outcome.results[0]["programs"]
    ]


WORLD = "dist.get_world_size()"
# (bug, what the author thought, text of the reference fix, what stands there instead)
WRONG = [
    ("missing_all_reduce", "a sum is enough", f"    weight.grad /= {WORLD}\n", ""),
    ("missing_all_reduce", "two ranks", f"weight.grad /= {WORLD}", "weight.grad /= 2"),
    (
        "missing_all_reduce",
        "rank 0 knows",
        f"dist.all_reduce(weight.grad)\n    weight.grad /= {WORLD}",
        "dist.broadcast(weight.grad, src=0)",
    ),
    ("wrong_gradient_scale", "no ranks", f"({WORLD} * len(micro_batches))", "len(micro_batches)"),
    ("wrong_gradient_scale", "no micro-batches", f"({WORLD} * len(micro_batches))", WORLD),
    ("wrong_gradient_scale", "samples", f"({WORLD} * len(micro_batches))", f"({WORLD} * len(x))"),
    ("wrong_gradient_scale", "four of them", f"({WORLD} * len(micro_batches))", f"({WORLD} * 4)"),
    (
        "forgotten_broadcast",
        "one seed for all",
        "    torch.manual_seed(seed + 1 + dist.get_rank())\n",
        "",
    ),
    ("forgotten_broadcast", "another seed", "manual_seed(seed)", "manual_seed(0)"),
    (
        "forgotten_broadcast",
        "any model will do",
        "    torch.manual_seed(seed)\n    model",
        "    torch.manual_seed(dist.get_rank())\n    model",
    ),
    ("unequal_collectives", "who has not used it keeps none", "torch.zeros_like", "torch.ones_like"),
    (
        "unequal_collectives",
        "the mean of those who used it",
        "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n",
        "        used = torch.tensor(float(parameter.grad is not None))\n"
        "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
        "        dist.all_reduce(used)\n        parameter.grad *= dist.get_world_size() / used\n",
    ),
    ("unequal_collectives", "a sum", f"        parameter.grad /= {WORLD}\n", ""),
    ("wrong_group", "everyone", "    return mine", "    return dist.group.WORLD"),
    (
        "wrong_group",
        "as drawn for four",
        "range(first, world, tensor_parallel)",
        "range(first % 2, world, 2)",
    ),
    (
        "wrong_group",
        "the other side of the grid",
        "range(first, world, tensor_parallel)",
        "range(first * (world // tensor_parallel), (first + 1) * (world // tensor_parallel))",
    ),
    (
        "shard_overlap",
        "no shuffle",
        "torch.randperm(samples, generator=shuffle).tolist()",
        "list(range(samples))",
    ),
    ("shard_overlap", "one order for ever", "manual_seed(epoch)", "manual_seed(0)"),
    ("shard_overlap", "everyone takes all", "order[rank * share : (rank + 1) * share]", "order"),
    ("shard_overlap", "nothing may be left", "samples // world", "-(-samples // world)"),
    ("dropout_seed", "a stream for each rank", "drop(out, p, common)", "drop(out, p, own)"),
    (
        "dropout_seed",
        "the same in every step",
        "manual_seed(seed + 2**20 * (1 + dist.get_rank()))",
        "manual_seed(1 + dist.get_rank())",
    ),
    ("dropout_seed", "none inside", "drop(torch.relu(x @ a), p, own)", "torch.relu(x @ a)"),
    ("step_before_sync", "sum", f"        parameter.grad /= {WORLD}\n", ""),
    (
        "step_before_sync",
        "weights instead",
        f"        dist.all_reduce(parameter.grad)\n        parameter.grad /= {WORLD}\n    optimizer.step()\n",
        "        pass\n    optimizer.step()\n"
        "    for parameter in model.parameters():\n"
        f"        dist.all_reduce(parameter.data)\n        parameter.data /= {WORLD}\n",
    ),
    (
        "step_before_sync",
        "before and after",
        "    loss.backward()\n",
        "    loss.backward()\n    optimizer.step()\n",
    ),
    (
        "batch_norm_statistics",
        "the mean of means",
        "    mean = total / count\n",
        f"    mean = x.mean(0)\n    dist.all_reduce(mean)\n    mean /= {WORLD}\n",
    ),
    ("batch_norm_statistics", "around its own mean", "(x - mean).square()", "(x - x.mean(0)).square()"),
    ("batch_norm_statistics", "unbiased", "squares / count", "squares / (count - 1)"),
    ("unequal_tokens", "padding counts", "mask.sum()]", "mask.sum() * 0 + mask.numel()]"),
    ("unequal_tokens", "at least one", "mask.sum()]", "mask.sum().clamp(min=1)]"),
    (
        "unequal_tokens",
        "the mean of means",
        "    both = torch.stack([(losses * mask).sum(), mask.sum()])\n",
        "    both = torch.stack([(losses * mask).sum() / mask.sum(), (mask.sum() > 0).float()])\n",
    ),
    (
        "local_clip",
        "mean of squares",
        "dist.all_reduce(squares)",
        f"dist.all_reduce(squares)\n    squares /= {WORLD}",
    ),
    ("local_clip", "largest", "dist.all_reduce(squares)", "dist.all_reduce(squares, op=dist.ReduceOp.MAX)"),
    (
        "local_clip",
        "sum of norms",
        "    dist.all_reduce(squares)\n    norm = squares.sqrt()\n",
        "    norm = squares.sqrt()\n    dist.all_reduce(norm)\n",
    ),
    ("local_clip", "always to the limit", ".clamp(max=1)", ""),
]

# Other right answers than the reference.
RIGHT = [
    (
        "missing_all_reduce",
        "averages the weights, which is the same for plain gradient descent",
        f"    dist.all_reduce(weight.grad)\n    weight.grad /= {WORLD}\n",
        f"    weight.grad /= {WORLD}\n    dist.all_reduce(weight.grad)\n",
    ),
    (
        "shard_overlap",
        "deals like cards",
        "order[rank * share : (rank + 1) * share]",
        "order[rank::world][:share]",
    ),
    ("forgotten_broadcast", "only the seed", "        dist.broadcast(tensor, src=0)\n", "        pass\n"),
    (
        "dropout_seed",
        "before the sum with one mask, which is the same",
        "    out = hidden @ b\n    dist.all_reduce(out)\n    return hidden, drop(out, p, common)",
        "    out = drop(hidden @ b, p, common)\n    dist.all_reduce(out)\n    return hidden, out",
    ),
    (
        "local_clip",
        "a loop of its own",
        "    squares = torch.stack([shard.square().sum() for shard in shards]).sum()\n",
        "    squares = sum(shard.square().sum() for shard in shards)\n",
    ),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Every right and wrong answer, tried in one run: {(bug, thought): row}."""
    folder = tmp_path_factory.mktemp("answers")
    jobs = []
    for number, (bug, thought, old, new) in enumerate([*WRONG, *RIGHT]):
        text = bug_named(bug).reference_fix.read_text()
        assert text.count(old) == 1, (bug, thought)
        file = folder / f"answer_{number}.py"
        file.write_text(text.replace(old, new))
        jobs.append({"bug": bug, "version": thought, "file": str(file)})
    return {(row.bug, row.version): row for row in tried(jobs, ranks=4)}


@pytest.mark.torch
@pytest.mark.parametrize(("bug", "thought"), [answer[:2] for answer in WRONG])
def test_plausible_wrong_answers_fail(answers, bug, thought):
    row = answers[bug, thought]
    assert not row.right
    assert row.symptoms


@pytest.mark.torch
@pytest.mark.parametrize(("bug", "thought"), [answer[:2] for answer in RIGHT])
def test_other_right_answers_pass(answers, bug, thought):
    assert answers[bug, thought].right, answers[bug, thought]


def test_every_bug_has_wrong_answers():
    counts = {name: [bug for bug, *_ in WRONG].count(name) for name in NAMES}
    assert min(counts.values()) >= 3
    assert len(NAMES) >= 8


# ---- a reader's file ----


def mean_loss(losses, mask):
    """A reader's answer, as in a cell: no imports of its own."""
    total, tokens = (losses * mask).sum(), mask.sum()
    for part in (total, tokens):
        dist.all_reduce(part)  # noqa: F821
    return total / tokens


@pytest.mark.torch
def test_a_function_can_be_checked(temporary_folders):
    result = labs.find_the_bug.check("unequal_tokens", mean_loss, ranks=2, limit_s=600, show=False)
    assert result.passed
    assert result.failed_checks() == []
    assert result.explanation()[0] == (
        "unequal_tokens: right. On 2 ranks your function does what one process does."
    )
    assert list(temporary_folders.iterdir()) == []


@pytest.mark.torch
def test_the_command_line_checks_a_file_and_keeps_the_solution(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(bug_named("wrong_group").program.read_text())
    done = CliRunner().invoke(
        app,
        [
            "lab",
            "find_the_bug",
            "--bug",
            "wrong_group",
            "--fix",
            str(file),
            "--ranks",
            "3",
            "--limit-s",
            "600",
        ],
    )
    assert done.exit_code == 1
    assert "wrong_group: not right yet. On 2 ranks: gradient against one process" in done.output
    assert "Your wrong_group against one process" in done.output
    solution = bug_named("wrong_group").reference_fix.read_text().splitlines()
    program = bug_named("wrong_group").program.read_text().splitlines()
    for line in set(solution) - set(program):
        assert line.strip() not in done.output
    assert "Hint" not in done.output


@pytest.mark.torch
@pytest.mark.parametrize(
    ("body", "limit_s", "sentence"),
    [
        ("    return None\n", 200, "training_step's result must be a pair, not None"),
        ("    import os\n    os._exit(3)\n", 200, "ended with exit status 3"),
        ("    while True:\n        pass\n", 8, "the limit of 8 s"),
    ],
)
def test_a_file_that_fails_dies_or_hangs_gets_a_sentence(family, tmp_path, body, limit_s, sentence):
    file = tmp_path / "mine.py"
    file.write_text("def training_step(weight, x, y, lr):\n" + body)
    result = labs.find_the_bug.check("missing_all_reduce", file, ranks=2, limit_s=limit_s, show=False)
    assert not result.passed
    assert sentence in result.failed_checks()[0]
    assert sentence in result.explanation()[0]
    assert "did not finish" in str(result.table("yours"))
    family.assert_all_gone()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def training_step(:\n", r"mine.py is not valid Python: .* \(line 1\)"),
        ("x = '\0'\n", r"mine.py is not valid Python"),
        ("def train():\n    pass\n", r"mine.py must define the function training_step; it defines train\."),
        ("", r"it defines none\."),
    ],
)
def test_a_file_that_cannot_run_starts_no_rank(tmp_path, monkeypatch, text, sentence):
    monkeypatch.setattr(FRONT, "run", None)
    file = tmp_path / "mine.py"
    file.write_text(text)
    result = labs.find_the_bug.check("missing_all_reduce", file)
    assert not result.passed
    assert re.search(sentence, result.programs[0].stopped)
    assert len(result.failed_checks()) == 1
    assert FindTheBugRun.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 1}, "ranks must be a whole number from 2 to 16, not 1"),
        ({"bug": "none_such"}, "bug must be one of 'missing_all_reduce', "),
        ({"fix": "mine.py"}, "bug must be given with fix or hints"),
        ({"hints": 2}, "bug must be given with fix or hints"),
        ({"bug": "local_clip", "hints": 4}, "hints must be a whole number from 0 to 3, not 4"),
        ({"bug": "local_clip", "fix": "/no/such.py"}, "there is no such file"),
        ({"limit_s": -1}, "limit_s must be a finite number above 0 seconds, not -1"),
        ({"start": "now"}, "start must be one of"),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match="must") as caught:
        labs.find_the_bug(**arguments)
    assert message in str(caught.value)


def test_only_readable_functions_can_be_checked():
    with pytest.raises(ValueError, match="fix must be a file, or a function whose source can be read"):
        labs.find_the_bug.check("local_clip", len)


# ---- what can be said of any result ----


def test_what_was_recorded(recorded):
    table = str(recorded.table("programs"))
    assert table.count("never ends") == 1
    for name in NAMES:
        assert name in table


def _replaced(recorded, bug, version, **changes):
    rows = [
        dataclasses.replace(row, **changes) if (row.bug, row.version) == (bug, version) else row
        for row in recorded.programs
    ]
    return dataclasses.replace(recorded, programs=tuple(rows))


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf")])
def test_a_fix_that_is_wrong_fails_the_check(recorded, value):
    broken = _replaced(recorded, "local_clip", REFERENCE, sights=(Sight("norm", value, 1e-4),))
    [sentence] = broken.failed_checks()
    assert sentence.startswith("local_clip, reference fix, 4 ranks: norm: ")
    assert not broken.passed


def test_a_fault_that_goes_unseen_fails_the_check(recorded):
    seen = recorded.program_row("local_clip", REFERENCE).sights
    blind = _replaced(recorded, "local_clip", AS_FOUND, sights=seen)
    assert blind.failed_checks() == ["local_clip: the trial does not see the fault on 4 ranks"]
    rows = blind.table("programs").tables[0].rows
    assert [row[-2:] for row in rows if row[0] == "local_clip"] == [("NO", "yes")]


def test_a_program_of_which_nothing_was_seen_is_not_right():
    assert not ProgramRow("local_clip", YOURS, 2).right


def test_hints_come_as_asked(recorded):
    bug = bug_named("local_clip")
    asked = dataclasses.replace(recorded, settings={"ranks": 4, "bug": "local_clip", "fix": None, "hints": 2})
    words = asked.explanation()
    assert f"Hint 2: {bug.hints[1]}" in words
    assert not any(bug.hints[2] in sentence for sentence in words)
    assert labs.find_the_bug.hint("local_clip", 3) == bug.hints[2]
    assert labs.find_the_bug.story("local_clip") == bug.story
    with pytest.raises(ValueError, match="number must be a whole number from 1 to 3, not 0"):
        labs.find_the_bug.hint("local_clip", 0)


# ---- the programs as text ----


@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_programs_read_like_prose(bug):
    program, fix = bug.program.read_text(), bug.reference_fix.read_text()
    assert 15 <= len(program.splitlines()) <= 35
    for text in (program, fix):
        assert max(len(line) for line in text.splitlines()) <= 80
    assert len(set(bug.hints)) == 3
    assert str(labs.find_the_bug.source(bug.name)) == program
    # They differ in the one function, and in imports.
    parts = [
        {
            ast.unparse(node)
            for node in ast.parse(text).body
            if not isinstance(node, (ast.Import, ast.ImportFrom))
        }
        for text in (program, fix)
    ]
    changed = list(parts[0] - parts[1])
    assert len(changed) == len(parts[1] - parts[0]) == 1
    assert changed[0].startswith(f"def {bug.function}(")


def test_the_code_that_tries_them_is_shown():
    assert str(labs.find_the_bug.source()).startswith("def run_trials(")
    assert labs.find_the_bug.names == NAMES


# ---- without torch ----


def test_without_torch_the_recording_is_shown_but_never_in_place_of_a_check(monkeypatch, capsys):
    monkeypatch.setattr("shardlab.labs.machine.torch_installed", lambda: False)
    assert labs.find_the_bug().recorded
    assert "What you see instead" in capsys.readouterr().err
    bug = bug_named("local_clip")
    with pytest.raises(LabError, match="torch is not installed"):
        labs.find_the_bug(bug=bug.name, fix=str(bug.program))

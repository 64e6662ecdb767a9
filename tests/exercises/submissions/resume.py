"""Assignment 10: come back as the same run."""

from __future__ import annotations

from submission import Assignment, Submission
from submission import changed as _changed

from shardlab.classroom.resume_checks import by_hand_numbers


def by_hand(student: str) -> str:
    """Task 1 as this student answers it: plain numbers."""
    mine = by_hand_numbers(student)
    names = ("size_bytes", "mtbf_s", "interval_s", "lost_fraction")
    return "\n".join(f"{name} = {mine.key(name)!r}" for name in names)


BY_HAND = """
width = 12 if numbers.contents == "adam-12" else 14
size_bytes = width * numbers.n_params
mtbf_s = numbers.gpu_mtbf_s / numbers.n_gpus
write = size_bytes / numbers.storage
interval_s = (2 * write * mtbf_s) ** 0.5
# At Young's interval, writing and lost work cost the same.
lost_fraction = 2 * write / interval_s + numbers.restart_s / mtbf_s
"""

MISSING = """
logs = {name: runs.log(Training, name) for name in "ABCD"}
missing = {}
for name, log in logs.items():
    if log.still_loss:
        missing[name] = "data position"
    elif log.first_loss:
        missing[name] = "random state"
    elif log.update > 1:
        missing[name] = "optimizer"
    else:
        missing[name] = "scheduler"
"""

STATE = """
import copy


def state_of(run):
    parts = ("model", "optimizer", "scheduler")
    state = {part: copy.deepcopy(getattr(run, part).state_dict()) for part in parts}
    state["numbers"] = {"order_seed": run.order_seed, "epoch": run.epoch, "offset": run.offset}
    state["random"] = torch.get_rng_state()
    return state


def put_back(run, state):
    for part in ("model", "optimizer", "scheduler"):
        getattr(run, part).load_state_dict(state[part])
    for name, number in state["numbers"].items():
        setattr(run, name, number)
    torch.set_rng_state(state["random"])
"""

JOB = """

def save_job(run, folder):
    torch.save(state_of(run), folder / f"{run.rank}-of-{run.n_ranks}.pt")


def load_job(run, folder):
    file = folder / f"{run.rank}-of-{run.n_ranks}.pt"
    if not file.exists():
        raise ValueError(f"there is no {file.name}: the checkpoint is of another number of ranks")
    put_back(run, torch.load(file))
"""

WHOLE = """
def save_whole(disk, step, shards):
    for name in disk.names():
        if name.startswith("draft"):
            disk.delete(name)
    disk.write(f"draft-{step}", json.dumps(shards))
    disk.flush(f"draft-{step}")
    disk.rename(f"draft-{step}", f"step-{step}")


def load_latest(disk):
    steps = [int(name.split("-")[1]) for name in disk.names() if name.startswith("step-")]
    return (max(steps), json.loads(disk.read(f"step-{max(steps)}"))) if steps else None
"""

RESHARD = """
def reshard(checkpoint, n_elements, n_ranks):
    old, new = len(checkpoint[0]["parameters"]), -(-n_elements // n_ranks)

    def element(key, place):
        return checkpoint[place // old][key][place % old] if place < n_elements else 0.0

    return [
        {
            **{key: [element(key, rank * new + i) for i in range(new)]
               for key in ("parameters", "exp_avg", "exp_avg_sq")},
            "step": checkpoint[0]["step"],
            "random": None,
        }
        for rank in range(n_ranks)
    ]
"""

EXPLAINED = (
    "The first loss comes before the first update. 12 bytes and some kilobytes. Other masks on other ranks."
)

REFERENCE = {
    "task-1-answer": BY_HAND,
    "task-2-answer": MISSING,
    "task-3-code": STATE + JOB,
    "task-4-code": WHOLE,
    "task-5-code": RESHARD,
    "task-6-answer": EXPLAINED,
}
FULL = (4, 4, 9, 5, 4, 0)


def changed(**cells: str) -> dict[str, str]:
    """The reference with other code in some cells."""
    return _changed(REFERENCE, **cells)


WRONG = {
    # Saves the parameters and nothing else. The two ranks are tried with working functions.
    "parameters_only": Submission(
        changed(
            task_3_code="""
import copy


def state_of(run):
    return {"model": copy.deepcopy(run.model.state_dict())}


def put_back(run, state):
    run.model.load_state_dict(state["model"])
"""
            + JOB
        ),
        (4, 4, 4, 5, 4, 0),
        (
            "order_seed, epoch and offset are (8, 0, 16), not (3, 1, 40)",
            "the schedule goes on from its step 2, not from 17",
            "torch's random state is not the saved one",
        ),
    ),
    # Saves no random state: everything else is right, and the first loss is off.
    "forgets_the_random_state": Submission(
        changed(task_3_code=STATE.replace('    torch.set_rng_state(state["random"])\n', "") + JOB),
        (4, 4, 7, 5, 4, 0),
        ("dropout draws other masks", "loss 1 after the resume is"),
    ),
    # Restores the place in the epoch but not which epoch it is: the order of epoch 0 comes again.
    "order_of_epoch_0": Submission(
        changed(task_3_code=STATE.replace('"epoch": run.epoch, ', "") + JOB),
        (4, 4, 7, 5, 4, 0),
        ("order_seed, epoch and offset are (3, 0, 40), not (3, 1, 40)",),
    ),
    # Hands out the tensors that training goes on to change.
    "state_without_a_copy": Submission(
        changed(
            task_3_code=STATE.replace(
                "copy.deepcopy(getattr(run, part).state_dict())", "getattr(run, part).state_dict()"
            )
            + JOB
        ),
        (4, 4, 8, 5, 4, 0),
        ("it changed while training went on after state_of. Copy what is in it",),
    ),
    # Puts an object into the state, which torch.load refuses unless told to trust the file.
    "saves_an_object": Submission(
        changed(
            task_3_code="import argparse\n"
            + STATE.replace(
                '{"order_seed": run.order_seed, "epoch": run.epoch, "offset": run.offset}',
                "argparse.Namespace(order_seed=run.order_seed, epoch=run.epoch, offset=run.offset)",
            ).replace('state["numbers"].items()', 'vars(state["numbers"]).items()')
            + JOB
        ),
        (4, 4, 8, 5, 4, 0),
        ("torch.load refuses the state by default",),
    ),
    # Rank 0 saves for everyone: rank 1 comes back with rank 0's random state.
    "rank_0_saves_for_all": Submission(
        changed(
            task_3_code=STATE
            + """

def save_job(run, folder):
    if run.rank == 0:
        torch.save({"n_ranks": run.n_ranks, "state": state_of(run)}, folder / "checkpoint.pt")


def load_job(run, folder):
    job = torch.load(folder / "checkpoint.pt")
    if job["n_ranks"] != run.n_ranks:
        raise ValueError("another number of ranks")
    put_back(run, job["state"])
"""
        ),
        (4, 4, 8, 5, 4, 0),
        ("rank 1 came back with rank 0's random state, not its own",),
    ),
    # Loads whatever its file holds, and doesn't ask how many ranks there were.
    "any_number_of_ranks": Submission(
        changed(
            task_3_code=STATE
            + """

def save_job(run, folder):
    torch.save(state_of(run), folder / f"rank-{run.rank}.pt")


def load_job(run, folder):
    put_back(run, torch.load(folder / f"rank-{run.rank}.pt"))
"""
        ),
        (4, 4, 8, 5, 4, 0),
        ("a checkpoint of 2 ranks was loaded on 1 rank without a word",),
    ),
    # Overwrites the only checkpoint there is.
    "saves_in_place": Submission(
        changed(
            task_4_code="""
def save_whole(disk, step, shards):
    disk.write("checkpoint", json.dumps([step, shards]))
    disk.flush("checkpoint")


def load_latest(disk):
    if "checkpoint" not in disk.names():
        return None
    step, shards = json.loads(disk.read("checkpoint"))
    return step, shards
"""
        ),
        (4, 4, 9, 2, 4, 0),
        ("the power fails in write('checkpoint', …), operation 1 of the save of step 200",),
    ),
    # Renames a file that isn't on the disk yet.
    "renames_without_a_flush": Submission(
        changed(task_4_code=WHOLE.replace('    disk.flush(f"draft-{step}")\n', "")),
        (4, 4, 9, 4, 4, 0),
        ("the power fails right after the save of step 200 has returned",),
    ),
    # Moves the pointer first and writes the shards then.
    "pointer_before_the_shards": Submission(
        changed(
            task_4_code="""
def save_whole(disk, step, shards):
    disk.write("latest.draft", json.dumps([step, len(shards)]))
    disk.flush("latest.draft")
    disk.rename("latest.draft", "latest")
    for number, shard in enumerate(shards):
        disk.write(f"{step}/{number}", shard)
        disk.flush(f"{step}/{number}")


def load_latest(disk):
    if "latest" not in disk.names():
        return None
    step, count = json.loads(disk.read("latest"))
    return step, [disk.read(f"{step}/{number}") for number in range(count)]
"""
        ),
        (4, 4, 9, 2, 4, 0),
        ("load_latest(…) stopped with FileNotFoundError",),
    ),
    # Takes the padding of the old shards for elements.
    "keeps_the_padding": Submission(
        changed(
            task_5_code="""
def reshard(checkpoint, n_elements, n_ranks):
    states = [{"step": checkpoint[0]["step"], "random": None} for _ in range(n_ranks)]
    for key in ("parameters", "exp_avg", "exp_avg_sq"):
        whole = [number for state in checkpoint for number in state[key]]
        size = -(-len(whole) // n_ranks)
        whole += [0.0] * (size * n_ranks - len(whole))
        for rank, state in enumerate(states):
            state[key] = whole[rank * size : (rank + 1) * size]
    return states
"""
        ),
        (4, 4, 9, 5, 2, 0),
        ("-7 is what the old padding held: it is no element",),
    ),
    # Hands the random states of the first old ranks on to the new ones.
    "random_states_of_other_ranks": Submission(
        changed(
            task_5_code=RESHARD.replace(
                '"random": None', '"random": checkpoint[rank % len(checkpoint)]["random"]'
            )
        ),
        (4, 4, 9, 5, 3, 0),
        ("a random stream belongs to a rank of the old layout, and can't be cut",),
    ),
    # Takes one GPU's time between failures for the job's, and takes optimizer and scheduler for each other.
    "one_gpus_failures": Submission(
        changed(
            task_1_answer=BY_HAND.replace(" / numbers.n_gpus", ""),
            task_2_answer=MISSING.replace("log.update > 1", "log.update < 1"),
        ),
        (1, 2, 9, 5, 4, 0),
        (
            "that is one GPU; any of them stops the job",
            "does not lack the scheduler",
            "does not lack the optimizer",
        ),
    ),
    # The notebook of the student 'neighbour' under another name: the numbers of task 1 are the neighbour's.
    "neighbour": Submission(changed(task_1_answer=by_hand("neighbour")), FULL),
    "copied": Submission(
        changed(task_1_answer=by_hand("neighbour")),
        (0, 4, 9, 5, 4, 0),
        ("handed in by 'copied', but the notebook says student = 'neighbour'",),
        student="neighbour",
    ),
}

ASSIGNMENT = Assignment(
    name="10_resume",
    notebook="resume.ipynb",
    chapter="10_checkpoints_faults.ipynb",
    reference=REFERENCE,
    full=FULL,
    wrong=WRONG,
    unsolved={
        "task-1-check": "size_bytes has no answer yet",
        "task-2-check": "missing['A'] has no answer yet",
        "task-3-check": "NotImplementedError: state_of is not written yet",
        "task-4-check": "NotImplementedError: save_whole is not written yet",
        "task-5-check": "NotImplementedError: reshard is not written yet",
    },
    marks_by_hand=4,
    needs_torch=True,
)

"""``shardlab diagnose`` and its commands: each is a diagnosis of the models, in the words of the command line."""

import inspect
import json
import re

import pytest
from typer.testing import CliRunner

from shardlab import cli_diagnose
from shardlab.cli import app
from shardlab.models import diagnose

RUNS = ["--ranks", "8", "--step", "975 ms", "--base-step", "100 ms"]


def shardlab(*arguments):
    return CliRunner().invoke(app, ["diagnose", *arguments])


@pytest.mark.parametrize("command", cli_diagnose._COMMANDS, ids=lambda command: command.name)
def test_a_command_offers_what_its_model_takes(command):
    parameters = inspect.signature(getattr(diagnose, command.function)).parameters
    offered = {option.argument: option for option in command.options}
    assert set(offered) <= set(parameters)
    needed = {name for name, one in parameters.items() if one.default is inspect.Parameter.empty}
    assert needed == {name for name, option in offered.items() if option.required}
    flags = [option.flag for option in command.options]
    assert len(set(flags)) == len(flags)


def test_the_comparison_of_two_runs_offers_what_its_model_takes():
    offered = {option.argument for option in cli_diagnose._RUNS} - {"measured", "json_file"}
    assert offered <= set(inspect.signature(diagnose.data_parallel).parameters)


def test_every_function_of_the_models_has_a_command():
    functions = {
        name for name, thing in vars(diagnose).items() if inspect.isfunction(thing) and name != "step_time_s"
    }
    assert functions - {"data_parallel"} == {command.function for command in cli_diagnose._COMMANDS}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        # Advice and errors name what was typed, or could be.
        ((*RUNS, "--scaling", "weak"), 0, "Give --params (or --gradients) and --link"),
        ((*RUNS, "--scaling", "WEAK", "--gradients", "1GB"), 0, "Name the link (--link)"),
        (
            ("accumulation", "--one", "22 s", "--many", "88 s", "--micro-steps", "4"),
            0,
            "(or --compute under no_sync)",
        ),
        (("step", "--step", "2 s", "--communication", "1.5 s"), 0, "give --sent and --link"),
        (RUNS[2:], 2, "--ranks must be given"),
        (
            RUNS[:4],
            2,
            "--base-step must be given (seconds of one step), or --base-samples-per-s with --batch-per-rank",
        ),
        ((*RUNS[:4], "--base-samples-per-s", "5"), 2, "--base-samples-per-s needs --batch-per-rank"),
        ((*RUNS, "--gradients", "1 GB", "--params", "1M"), 2, "give --gradients or --params, not both"),
        ((*RUNS, "--link", "100GbE", "--params", "1M"), 2, "--link '100GbE': the unit must be one of"),
        ((*RUNS, "--cores-per-node", "2"), 2, "--cores-per-node needs --nodes"),
        ((*RUNS, "--backend", "smoke"), 2, "--backend must be one of"),
        (
            ("--nodes", "2", "step", "--step", "1 s", "--communication", "1 s"),
            2,
            "--nodes must stand after the command",
        ),
        (
            ("step", "--step", "1 s", "--communication", "2 s"),
            2,
            "--communication must not exceed --step 1 s, not 2 s",
        ),
        (("collective", "--size", "1 Gb", "--time", "1 ms", "--ranks", "2"), 2, "--size '1 Gb'"),
        (("nodes", "--busbw", "2;100 GB/s"), 2, "--busbw must look like '3,70 GB/s', not '2;100 GB/s'"),
        (("pipeline", "--run", "8,16"), 2, "--run must look like '8,16,7987', not '8,16'"),
        (("memory", "--params", "6b", "--used", "2,13 GB"), 2, "--used must hold at least two pairs"),
        (("memory", "--params", "6b", "--used", "2,13 Gb", "--used", "4,1 GB"), 2, "bytes in --used '13 Gb'"),
    ],
)
def test_it_speaks_of_options(arguments, status, words):
    answer = shardlab(*arguments)
    text = re.sub(r"\s+", " ", answer.output)
    assert answer.exit_code == status, text
    assert words in text
    assert not re.search(
        r"\b(n_ranks|n_params|nominal_bandwidth|step_s|gradient_bytes|batch_per_rank)\b", text
    )


def test_a_log_that_is_none_is_named(tmp_path):
    for name, content, words in (
        ("no.log", None, "must name a file that can be read"),
        ("a.json", "{}", "is no log"),
    ):
        file = tmp_path / name
        if content is not None:
            file.write_text(content)
        for before in (RUNS, ["log"]):
            answer = shardlab(*before, "--log", str(file))
            assert answer.exit_code == 2
            assert f"--log {str(file)!r}" in answer.output or f"not {str(file)!r}" in answer.output
            assert words in answer.output


def test_the_whole_result_goes_to_a_file(tmp_path):
    file = tmp_path / "found.json"
    answer = shardlab("pipeline", "--run", "4,?,33", "--reference", "170", "--json", str(file))
    assert answer.exit_code == 0, answer.output
    found = json.loads(file.read_text())
    assert found["verdict"]["code"] == "bubble-cannot-explain"
    assert found["micro_batches"] == [None]


@pytest.mark.parametrize(
    ("used", "code"),
    [
        (("2,13 GB", "4,13 GB"), "unsharded-weights"),
        (("2,50 GB", "4,50 GB"), "replicated"),
        (("2,54 GB", "4,27 GB"), "sharded"),
        (("2,54 GB", "4,40 GB"), "partly-sharded"),
    ],
)
def test_what_memory_at_two_numbers_of_ranks_says(tmp_path, used, code):
    file = tmp_path / "found.json"
    answer = shardlab(
        "memory", "--params", "6.05B", "--used", used[0], "--used", used[1], "--json", str(file)
    )
    assert answer.exit_code == 0, answer.output
    assert json.loads(file.read_text())["verdict"]["code"] == code


def test_help_lists_the_commands():
    answer = shardlab("--help")
    assert answer.exit_code == 0
    for command in cli_diagnose._COMMANDS:
        assert command.name in answer.output

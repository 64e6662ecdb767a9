"""``shardlab plan`` and ``shardlab diagnose`` as a user types them."""

import json

import pytest
from typer.testing import CliRunner

from shardlab.cli import app
from shardlab.hardware import cluster
from shardlab.models import plan
from shardlab.transformer import preset

PLAN = ["plan", "--node", "dgx-h100", "--gpus", "16", "--global-batch", "64", "--sequence", "4096"]
DIAGNOSE = ["diagnose", "--ranks", "8", "--step", "975 ms", "--base-step", "100 ms"]


def shardlab(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_plan_prints_the_ranking_of_the_model(tmp_path):
    file = tmp_path / "plan.json"
    answer = shardlab(*PLAN, "--model", "llama3-8b", "--top", "3", "--json", str(file))
    assert answer.exit_code == 0, answer.output
    expected = plan.search(preset("llama3-8b"), cluster("dgx-h100", 16), 64, 4096, top=3)
    assert expected.text in answer.stdout
    assert json.loads(file.read_text())["tried"] == expected.tried


def test_plan_ends_with_1_where_nothing_fits_and_keeps_its_answer(tmp_path):
    file = tmp_path / "plan.json"
    arguments = ["plan", "--node", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--sequence", "8192"]
    answer = shardlab(*arguments, "--model", "llama3-405b", "--json", str(file))
    assert answer.exit_code == 1
    assert "No layout fits" in answer.stdout
    assert json.loads(file.read_text())["fitting"] == 0


def test_plan_reads_a_config_json(tmp_path):
    config = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16}
    config |= {
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    answer = shardlab(*PLAN, "--model", str(file))
    assert answer.exit_code == 0, answer.output
    assert "layouts tried" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN, "--model", "llama9"], "not 'llama9'"),
        ([*PLAN, "--model", "missing.json"], "not 'missing.json'"),
        ([*PLAN[:3], "--gpus", "0", *PLAN[5:], "--model", "llama3-8b"], "gpus"),
        (["plan", "--node", "dgx-h1000", *PLAN[3:], "--model", "llama3-8b"], "not 'dgx-h1000'"),
        ([*DIAGNOSE, "--scaling", "sideways"], "not 'sideways'"),
        ([*DIAGNOSE, "--link", "10 Gb"], "10 Gb"),
        ([*DIAGNOSE, "--log", "no-such.log"], "not 'no-such.log'"),
        # The option as it was typed, and the nearest name.
        ([*PLAN, "--model", "lama3-70b"], "--model must be one of"),
        ([*PLAN, "--model", "lama3-70b"], "Did you mean llama3-70b"),
        (["plan", "--node", "h100", *PLAN[3:], "--model", "llama3-8b"], "Did you mean dgx-h100"),
        ([*PLAN[:3], "--gpus", "0", *PLAN[5:], "--model", "llama3-8b"], "--gpus must be"),
        ([*DIAGNOSE, "--gradients", "1 gigabyte"], "--gradients '1 gigabyte'"),
        ([*DIAGNOSE, "--link", "10 Gb"], "--link '10 Gb'"),
        ([*DIAGNOSE, "--step", "975"], "--step '975'"),
        ([*DIAGNOSE, "--json", "no/such/folder.json"], "--json must name a file in a folder"),
        (
            [*PLAN, "--model", "llama3-8b", "--json", "no/such/folder.json"],
            "--json must name a file in a folder",
        ),
    ],
)
def test_bad_input_is_named_and_is_wrong_usage(arguments, words):
    answer = shardlab(*arguments)
    assert answer.exit_code == 2
    assert words in answer.output
    assert "Traceback" not in answer.output


def test_names_are_known_in_any_case():
    answer = shardlab("plan", "--node", "DGX-H100", *PLAN[3:], "--model", "Llama3-8B", "--top", "1")
    assert answer.exit_code == 0, answer.output


def test_diagnose_gives_the_implied_bandwidth_and_a_verdict():
    answer = shardlab(*DIAGNOSE, "--scaling", "weak", "--gradients", "1 GB", "--link", "16 Gb/s")
    assert answer.exit_code == 0, answer.output
    # 1.75 GB in 875 ms (nothing hidden) to 975 ms (all of it).
    assert "1.79 GB/s to 2 GB/s" in answer.stdout
    assert "0.821x" in answer.stdout
    assert "Verdict:" in answer.stdout


def test_diagnose_shows_both_scalings_if_none_is_named():
    answer = shardlab(*DIAGNOSE, "--gradients", "1 GB")
    assert "weak scaling" in answer.stdout
    assert "strong scaling" in answer.stdout

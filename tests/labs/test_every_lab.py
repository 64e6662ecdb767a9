"""What holds for every lab: its line in the list, its recorded run, tables, picture, source, and life without torch.

A lab is tested here as soon as it is in ``LAB_NAMES``; what it measures is tested in a file of its own.
"""

import ast
import dataclasses
import inspect
import re

import pytest

from shardlab import labs
from shardlab.palette import color

# What chapters and readers may ask a run's ``table`` for.
TABLES = {
    "ring": ("equality", "steps", "wire", "times"),
    "ddp": ("equality", "wire", "scaling"),
    "accumulation": ("ways", "wire", "tokens"),
    "data_order": ("epochs", "padding", "seeds", "metric", "augmentation", "hang", "join"),
    "local_sgd": ("equality", "training"),
    "zero": ("equality", "memory", "whole", "collectives", "wire", "accumulation"),
    "tensor_parallel": ("equality", "activations", "wire", "orders", "dropout", "loss"),
    "pipeline": ("bubble", "memory", "equality", "deadlock"),
    "context_parallel": ("equality", "work", "balance", "traffic"),
    "expert_parallel": ("equality", "load", "traffic", "capacity", "training"),
    "mesh": ("groups", "equality", "traffic", "mistake"),
    "straggler": ("slow", "waiting", "jitter"),
    "checkpoint": ("resume", "reshard", "files", "saves", "damage"),
    "restart": ("losses", "recovery"),
    "find_the_bug": ("programs",),
    "slow_network": ("steps", "link", "wire"),
    "deepspeed_zero": ("memory", "losses"),
    "megatron": ("linears", "layouts", "wire"),
    "ray_train": ("lives", "recovery"),
}
WITH_PICTURE = (
    "ring",
    "ddp",
    "local_sgd",
    "zero",
    "tensor_parallel",
    "pipeline",
    "context_parallel",
    "expert_parallel",
    "checkpoint",
    "slow_network",
)


@pytest.fixture(scope="module", params=labs.LAB_NAMES)
def lab(request):
    return getattr(labs, request.param)


@pytest.fixture(scope="module")
def recorded(lab):
    return lab.load_recording()


def test_it_has_what_the_list_shows(lab):
    assert isinstance(lab, labs.Lab)
    assert lab in labs.LABS
    assert lab.name in labs.__all__
    assert lab.title
    assert lab.needs
    assert lab.seconds > 0
    assert repr(lab).startswith(f"labs.{lab.name}(): ")
    assert (lab.__doc__ or "").strip()


def test_every_option_is_an_argument_with_a_default(lab):
    parameters = inspect.signature(lab.function).parameters
    for name, words in lab.options.items():
        assert parameters[name].default is not inspect.Parameter.empty, name
        assert words.endswith("."), name
    assert [name for name, one in parameters.items() if one.default is inspect.Parameter.empty] == []


def test_the_recorded_run_is_marked_and_sound(recorded):
    assert recorded.recorded
    assert recorded.failed_checks() == []
    words = recorded.provenance()
    assert words.startswith("Recorded earlier, not measured here: ")
    assert re.search(r"\d{4}-\d\d-\d\d", words)
    assert recorded.stamp.torch in words
    assert words in str(recorded)
    assert repr(recorded) == str(recorded)
    assert all(recorded.explanation())


def test_the_recorded_run_survives_json(recorded):
    assert type(recorded).from_json(recorded.to_json()) == dataclasses.replace(recorded, recorded=True)
    with pytest.raises(ValueError, match="must be the JSON of a complete"):
        type(recorded).from_json(recorded.to_json().replace('"complete": true', '"complete": false'))


def test_each_table_says_where_its_numbers_are_from(lab, recorded):
    assert tuple(recorded.make_tables()) == TABLES[lab.name]
    for name in recorded.make_tables():
        (table,) = recorded.table(name).tables
        assert recorded.provenance() in str(recorded.table(name)), name
        assert "<caption" in recorded.table(name)._repr_html_(), name
        assert all(len(row) == len(table.columns) for row in table.rows), name
        assert table.rows, name
    # All tables together say it once.
    assert str(recorded.table()).count(recorded.provenance()) == 1


def test_a_table_that_does_not_exist(recorded):
    known = ", ".join(recorded.make_tables())
    with pytest.raises(ValueError, match=rf"name must be one of {re.escape(known)}, not 'nonsense'"):
        recorded.table("nonsense")


@pytest.mark.parametrize("name", WITH_PICTURE)
@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_is_dressed_for_its_page_and_shown_once(name, dark):
    import matplotlib.pyplot as plt

    figure = getattr(labs, name).load_recording().plot(dark=dark)
    assert plt.get_fignums() == []
    text, surface = color("text", dark), color("surface", dark)
    words = [each for axes in figure.axes for each in (axes.xaxis.label, axes.yaxis.label, axes._left_title)]
    ticks = [each for axes in figure.axes for each in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert {each.get_color() for each in [*words, *ticks]} == {text}
    assert figure.axes[-1].get_xlabel()
    for patch in (figure.patch, *[axes.patch for axes in figure.axes]):
        assert patch.get_facecolor() == plt.matplotlib.colors.to_rgba(surface)
    for axes in figure.axes:
        assert not any(axes.spines[side].get_visible() for side in ("top", "right"))


def test_every_lab_with_a_picture_is_named_here():
    drawing = [lab.name for lab in labs.LABS if hasattr(lab.result, "plot")]
    assert drawing == list(WITH_PICTURE)


def test_the_source_shown_is_whole_and_fits_the_page(lab):
    assert lab.shown
    for name in lab.shown:
        text = str(lab.source(name))
        (made,) = ast.parse(text).body
        assert made.name == name
        assert max(map(len, text.splitlines())) <= 80, name
    assert str(lab.source()) == "\n\n\n".join([str(lab.source(name)) for name in lab.shown])
    with pytest.raises(ValueError, match=r"names must be among .*, not 'nonsense'"):
        lab.source("nonsense")


def test_without_torch_the_recorded_run_is_shown_and_said_to_be_one(lab, monkeypatch, capsys):
    monkeypatch.setattr("shardlab.labs.machine.torch_installed", lambda: False)
    monkeypatch.setattr("shardlab.labs.machine.installed", lambda module: False)
    run = lab(show=False)
    assert run.recorded
    said = capsys.readouterr()
    assert "What you see instead is the run that came with the book" in said.out + said.err

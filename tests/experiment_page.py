"""A bare page with one experiment whose charts Python computed before, as it does in the page's worker."""

import json
from typing import Any

from shardlab.experiments.controls import description
from shardlab.experiments.engine import load
from shardlab.palette import css

FILES = ("experiment.js", "experiment.css")


def experiment_page(name: str, given: dict[str, Any], compute: str) -> str:
    """The page's HTML; it wants ``FILES`` beside it.

    Args:
        name: of the experiment.
        given: what the page knows as ``given``, beside the experiment's ``spec``.
        compute: a function in JavaScript from control values to one of the charts in ``given``.
    """
    known = json.dumps({"spec": description(load(name)), **given}).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<style>{css()} body {{ font: 16px/1.5 system-ui, sans-serif; }}</style>"
        '<link rel="stylesheet" href="experiment.css"><script src="experiment.js"></script></head>'
        f"<body><main></main><script>const given = {known};\n"
        f"const engine = {{ compute: async {compute} }};\n"
        'shardlabExperiment.renderExperiment(document.querySelector("main"), given.spec, engine, {}).ask();\n'
        "</script></body></html>"
    )

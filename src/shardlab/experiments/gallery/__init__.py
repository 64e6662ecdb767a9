"""The experiments: one file each, found by its name. A new one needs no other file.

``gallery/my_idea.py`` is the experiment ``"my-idea"``. It defines ``EXPERIMENT``, an
:class:`shardlab.experiments.controls.Experiment`: controls made by ``slider``, ``stepper``, ``choice`` and ``toggle``,
presets with their sources, and a pure function from all control values (by keyword) to a chart made by
:mod:`shardlab.experiments.chart`. The page, the notebook widget, ``plot``, the still picture and the parity test
find it by themselves.

The file runs under CPython and MicroPython: standard library only, no starred displays such as ``[*a, b]`` or
``{**a}``, no reliance on a stable sort, numbers in words by :mod:`shardlab.experiments.words`.
"""

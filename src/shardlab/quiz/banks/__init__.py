"""The question banks: one module each, named as the quiz, with a function ``build(seed) -> Quiz``.

A file added here is found by itself; nothing else has to be changed::

    # banks/q9.py
    def build(seed: int = 9) -> Quiz:
        draw = Draw(seed, "q9/first")                    # numbers of its own for every variant
        ...
        part = figure(id="time", prompt="How long does *x* take with {N} ranks?", key=model_value, unit="ms",
                      wrong=[(wrong_value, "misconception"), ...], solution=("...",))
        first = variant(id="first", title="...", scenario="...", values={"N": "8"}, parts=(part, ...))
        return quiz_of(id="q9", title="...", question="...", variants=(first, ...), values={}, seed=seed)

Keys, wrong values and whether an option holds come from ``shardlab.models``. Texts are templates filled from
``values``, with the marks of :mod:`shardlab.quiz.model`. The code also runs under MicroPython.
"""

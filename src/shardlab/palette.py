"""The book's colours, each with one meaning: the one place that matplotlib, the charts on the page and CSS read.

The pairs stay apart for colour-blind readers and in grey; a second shade serves the dark page.
Text drawn in a colour uses the ``-text`` roles, which keep a contrast of at least 4.5 to the page.
"""

from __future__ import annotations

# role: (on a light page, on a dark page)
ROLES: dict[str, tuple[str, str]] = {
    "compute": ("#14549c", "#4a90d9"),
    "compute-text": ("#14549c", "#8ac2fa"),
    "communication": ("#e08214", "#ffb35c"),
    "communication-text": ("#8f4a00", "#f7b16c"),
    "idle": ("#d7dade", "#4a5058"),
    "idle-text": ("#565d66", "#b4bbc4"),
    "memory-parameters": ("#0b5d3b", "#c9f2da"),
    "memory-gradients": ("#2f8f5b", "#7fd3a4"),
    "memory-optimizer": ("#7cc29a", "#3f9e6c"),
    "memory-activations": ("#c4e6d0", "#1f6b45"),
    "memory-text": ("#0b5d3b", "#8fdcb1"),
    "limit": ("#22262b", "#e6e9ec"),
    "text": ("#22262b", "#e6e9ec"),
    "muted": ("#565d66", "#a9b1ba"),
    "grid": ("#e3e6e9", "#3a4047"),
    "surface": ("#ffffff", "#121212"),
    "panel": ("#f6f7f9", "#1c1f23"),
    "good-text": ("#0b5d3b", "#8fdcb1"),
    "bad-text": ("#9b1c1c", "#ff9c94"),
}


def color(role: str, dark: bool = False) -> str:
    """The hex colour of a role."""
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, not {role!r}")
    return ROLES[role][1 if dark else 0]


# The book's page, JupyterLab and Notebook, Visual Studio Code: each says in its own way that it is dark.
DARK = 'html[data-theme="dark"], [data-jp-theme-light="false"], body.vscode-dark'


def css() -> str:
    """CSS custom properties ``--sl-<role>`` for light pages, and for dark ones wherever the book shows up."""
    light = "".join([f"  --sl-{role}: {pair[0]};\n" for role, pair in ROLES.items()])
    dark = "".join([f"  --sl-{role}: {pair[1]};\n" for role, pair in ROLES.items()])
    return f":root {{\n{light}}}\n{DARK} {{\n{dark}}}\n"

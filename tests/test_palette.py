"""The colours keep their promises: contrast of text, and apart in grey."""

import itertools

import pytest

from shardlab.palette import ROLES, color, css


def luminance(code):
    channels = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["surface", "panel"])
@pytest.mark.parametrize("role", [role for role in ROLES if role.endswith("text")] + ["muted", "limit"])
def test_text_can_be_read(role, ground, dark):
    assert contrast(color(role, dark), color(ground, dark)) >= 4.5


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_roles_stay_apart_in_grey(dark):
    assert contrast(color("compute", dark), color("communication", dark)) >= 1.7
    steps = [
        color(f"memory-{name}", dark) for name in ("parameters", "gradients", "optimizer", "activations")
    ]
    for one, other in itertools.pairwise(steps):
        assert contrast(one, other) >= 1.35


def test_css_has_every_role_for_both_pages():
    text = css()
    for role, (light, dark) in ROLES.items():
        assert f"--sl-{role}: {light};" in text
        assert f"--sl-{role}: {dark};" in text


def test_unknown_role_is_named():
    with pytest.raises(ValueError, match=r"role must be one of compute, .*, not 'blue'"):
        color("blue")

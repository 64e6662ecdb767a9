"""The ledger: whole, escaped, and no claim in it that the models contradict."""

import pytest

from shardlab import price_tags
from shardlab.models.scaling import data_parallel


def test_each_tag_is_complete_and_lands_in_the_ledger():
    ledger = price_tags.ledger_html()
    for key, tag in price_tags.TAGS.items():
        assert price_tags.price_tag(key) is tag
        for text in (tag.name, tag.splits, tag.buys, tag.pays, tag.pays_off):
            assert text.strip()
            assert text in ledger
        assert tag.paid_in in {"communication", "idle", "memory"}
        assert "<caption>" in tag._repr_html_()


def test_unknown_tag_is_named():
    with pytest.raises(ValueError, match=r"key must be one of 'data', .*, not 'dp'"):
        price_tags.price_tag("dp")


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("bandwidth", [1e9, 2e9, 10e9, 25e9])
def test_the_data_parallel_condition_is_the_models(ranks, bandwidth):
    weak = data_parallel(ranks, 0.1, 1e9, bandwidth)
    strong = data_parallel(ranks, 0.1, 1e9, bandwidth, scaling="strong")
    assert (weak.speedup > 1) == (weak.communication_time_s < (ranks - 1) * 0.1)
    assert (strong.speedup > 1) == (2 * 1e9 / bandwidth < 0.1)

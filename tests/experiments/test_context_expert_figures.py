"""The pictures of chapter 07 say what the models say."""

from shardlab import figures
from shardlab.models.context import ring_work


def test_the_deal_is_the_models():
    """A tile counts every pair of a diagonal block, the model the lower half: with one token a piece they are equal."""
    picture = figures.causal_deal(ranks=4)
    for split, listed in (("contiguous", "in order 3, 7, 11, 15"), ("zigzag", "in a zigzag 9, 9, 9, 9")):
        assert ", ".join(map(str, ring_work(8, 4, split).per_rank)) in listed
        assert listed in picture._repr_html_()


def test_every_token_comes_home():
    html = figures.token_round_trip()._repr_html_()
    assert "get 6, 3, 3 tokens" in html
    assert "Expert 0 has 6 tokens where a fair share is 4" in html

"""shardlab: predict, play with and measure the price of every way of splitting a training run."""

__version__ = "0.1.0"

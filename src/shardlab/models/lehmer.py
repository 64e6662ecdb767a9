"""A small generator of numbers that look random, equal in every engine: ``random`` differs between Pythons."""

from __future__ import annotations

import math

from shardlab.checks import count


class Lehmer:
    """The Lehmer generator ``x <- 48271 x mod (2**31 - 1)``: the same numbers in CPython and MicroPython.

    For shuffling and simulation in a lesson, not for statistics that matter.

    Source: Park, Miller and Stockmeyer, Communications of the ACM 36(7), 1993, technical correspondence.
    """

    _MODULUS = 2147483647
    _MULTIPLIER = 48271

    def __init__(self, seed: int) -> None:
        start = count("seed", seed, least=0)
        self._state = (start * 40692 + 12345) % (self._MODULUS - 1) + 1
        # Neighbouring seeds start close together: a few draws spread them.
        for _ in range(4):
            self.uniform()

    def uniform(self) -> float:
        """The next number above 0 and below 1."""
        self._state = self._state * self._MULTIPLIER % self._MODULUS
        return self._state / self._MODULUS

    def below(self, bound: int) -> int:
        """The next whole number from 0 to ``bound - 1``."""
        return int(self.uniform() * bound)

    def normal(self) -> float:
        """The next number of a normal distribution with mean 0 and standard deviation 1; it uses two uniform ones.

        Source: Box and Muller, Annals of Mathematical Statistics 29(2), 1958.
        """
        radius = math.sqrt(-2 * math.log(self.uniform()))
        return radius * math.cos(2 * math.pi * self.uniform())

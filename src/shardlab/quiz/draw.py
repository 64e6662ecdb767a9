"""Numbers drawn from a seed, the same in every Python: fresh variants of a question need them."""

from __future__ import annotations

from typing import Any

from shardlab.checks import count


class Draw:
    """A 32-bit linear congruential generator; each ``stream`` (a name) has numbers of its own.

    Multiplier and increment are those of Numerical Recipes (section 7.1); the low bits of such a generator
    repeat soon, so only the high 16 are used.
    """

    def __init__(self, seed: int, stream: str = "") -> None:
        self._state = count("seed", seed, least=0, most=2**32 - 1)
        for character in stream:
            self._step()
            self._state = (self._state + ord(character)) % 2**32
        self._step()

    def _step(self) -> None:
        self._state = (1664525 * self._state + 1013904223) % 2**32

    def below(self, limit: int) -> int:
        """A whole number from 0 to ``limit - 1`` (``limit`` at most 65536)."""
        bound = count("limit", limit, least=1, most=2**16)
        self._step()
        return (self._state // 2**16) * bound // 2**16

    def pick(self, options: Any) -> Any:
        """One of ``options``."""
        return options[self.below(len(options))]

    def shuffled(self, items: Any) -> list[Any]:
        """The items in a drawn order."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result

    def out_of_order(self, items: Any) -> list[Any]:
        """The items in a drawn order that is not the given one (at least two different items)."""
        result = self.shuffled(items)
        return result if result != list(items) else result[1:] + result[:1]

    def until(self, propose: Any, fits: Any, tries: int = 2000) -> Any:
        """The first ``propose()`` for which ``fits(proposal)`` holds.

        Raises:
            RuntimeError: none of ``tries`` proposals fits, so the condition is too narrow for its options.
        """
        for _ in range(tries):
            proposal = propose()
            if fits(proposal):
                return proposal
        raise RuntimeError(f"no fitting numbers in {tries} draws")

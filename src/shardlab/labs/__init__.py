"""Labs: real ``torch.distributed`` programs on this machine's processes, predicted beside measured.

>>> from shardlab import labs
>>> run = labs.ddp(ranks=4)

Every lab is called like a function; ``labs.ddp.source()`` shows the code that its ranks run. :func:`run` runs a
worker of your own. Importing this package doesn't import torch: the ranks do, in processes of their own.
"""

from __future__ import annotations

from typing import Any

from shardlab.labs.ddp import ddp
from shardlab.labs.lab import Lab
from shardlab.labs.run import LabError, LabInterrupted, Outcome, run

LABS: tuple[Lab[Any, Any], ...] = (ddp,)

__all__ = ["LABS", "Lab", "LabError", "LabInterrupted", "Outcome", "ddp", "run"]

"""Run one submission's notebook for grading: as its owner, within a time limit, and without marks for silence."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import contextmanager, suppress
from typing import Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.preprocessors import ExecutePreprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from traitlets import Integer

# shardlab.classroom.student reads it: the numbers of a task belong to the person who handed it in.
STUDENT_VARIABLE = "SHARDLAB_STUDENT"


class ExecuteSubmission(Execute):
    """nbgrader's ``Execute`` with three additions.

    - The kernel knows whose submission it runs.
    - The whole notebook has a time limit, because a cell that can't be interrupted makes every later cell wait
      for its own limit.
    - A check cell that ends without a result earns nothing. nbgrader gives full marks to a check that prints nothing.
    """

    submission_timeout = Integer(300, help="Seconds that a whole submission may take.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any = None, km: Any = None) -> tuple[NotebookNode, Any]:
        """Run every cell, then make sure that every check has answered."""
        self._student = resources["nbgrader"]["student"]
        self._expired = False
        try:
            nb, resources = super().preprocess(nb, resources, km)
        except DeadKernelError:
            if self._expired:
                raise TimeoutError(f"stopped after {self.submission_timeout} s in all") from None
            raise DeadKernelError("the notebook ended its own kernel (exit, or out of memory)") from None
        except CellTimeoutError:
            raise TimeoutError(f"a cell could not be stopped at its limit of {self.timeout} s") from None
        for cell in nb.cells:
            if _is_check(cell) and not _has_answered(cell):
                cell.outputs.append(_no_result())
        return nb, resources

    @contextmanager
    def setup_kernel(self, **kwargs: Any) -> Any:
        """Start the kernel with an environment of its own, and the clock with it."""
        with tempfile.TemporaryDirectory(prefix="exercises-") as settings:
            # Neither the teacher's IPython profile nor a student's may change how a notebook runs.
            self.km = self.create_kernel_manager()
            if os.name == "posix":
                # Files instead of ports between grader and kernel: nothing on the network, nothing to collide.
                self.km.transport, self.km.ip = "ipc", f"{settings}/kernel"
            environment = {**os.environ, STUDENT_VARIABLE: self._student, "IPYTHONDIR": settings}
            with ExecutePreprocessor.setup_kernel(self, env=environment, **kwargs):
                clock = threading.Timer(self.submission_timeout, self._expire)
                clock.daemon = True
                clock.start()
                try:
                    yield
                finally:
                    clock.cancel()

    def _expire(self) -> None:
        self._expired = True
        # The kernel leads a process group of its own.
        with suppress(ProcessLookupError):
            os.killpg(self.km.provisioner.pid, signal.SIGKILL)


def _is_check(cell: NotebookNode) -> bool:
    settings = cell.metadata.get("nbgrader", {})
    return cell.cell_type == "code" and settings.get("grade", False) and not settings.get("solution", False)


def _has_answered(cell: NotebookNode) -> bool:
    return any(output.output_type in ("error", "execute_result") for output in cell.outputs)


def _no_result() -> NotebookNode:
    return new_output(
        "error",
        ename="NoResult",
        evalue="the check gave no result",
        traceback=["NoResult: the check gave no result"],
    )

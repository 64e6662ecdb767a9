"""From root to a user that owns nothing, on the way into bubblewrap. Run by ``exercises_sandbox`` when root grades.

Python may lie where only root can walk, such as below /root. So before the rights are gone, and in a mount namespace
of its own, every folder that the sandbox needs is put where anybody can reach it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

_NEW_NS, _BIND, _SLAVE, _REC = 0x00020000, 4096, 1 << 19, 1 << 14


def main() -> None:
    """Arguments: a JSON object with ``stage`` (a folder), ``binds`` (paths), ``user`` (a number), ``command``."""
    task = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")

    check(libc.unshare(_NEW_NS), "a mount namespace of its own")
    check(libc.mount(b"none", b"/", None, _SLAVE | _REC, None), "keep mounts to ourselves")
    stage = Path(task["stage"])
    check(libc.mount(b"tmpfs", os.fsencode(stage), b"tmpfs", 0, b"mode=0755"), f"a file system at {stage}")
    for number, path in enumerate(task["binds"]):
        place = stage / str(number)
        if Path(path).is_dir():
            place.mkdir()
        else:
            place.touch()
        check(libc.mount(os.fsencode(path), os.fsencode(place), None, _BIND | _REC, None), f"bind {path}")
    os.setgroups([])
    os.setresgid(*[task["user"]] * 3)
    os.setresuid(*[task["user"]] * 3)
    os.execv(task["command"][0], task["command"])


if __name__ == "__main__":
    main()

"""Notice whatever a submission changes in the code that checks it. Runs in the submission's own process.

The kernel takes a snapshot of the checking code before a student's first line runs, and arms the guard. From then on
the snapshot, the reasons for suspicion and the key that signs a check's result live in the closure of an audit hook
(PEP 578): Python code can neither remove such a hook nor reach it, except through the garbage collector's lists or
the process's memory, and asking for these is one of the things that the hook watches for.

A dictionary carries a version that goes up with every change (PEP 509). So a change is noticed even if it was undone
before anyone looked. It can be read in CPython 3.11 and 3.12; elsewhere only lasting changes
are noticed.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# Whatever changes here is tampering. Nothing honest sets a name in these modules.
STRICT = (
    "shardlab.classroom",
    "shardlab.models",
    "shardlab.quiz",
    "shardlab.checks",
    "shardlab.units",
    "exercises_kernel",
    "exercises_guard",
)
# Used by the checks, and never changed by anything honest while a check runs, not even for a moment.
STEADY = (
    "builtins",
    "contextlib",
    "reprlib",
    "textwrap",
    "copy",
    "math",
    "numbers",
    "dataclasses",
    "unittest.mock",
    "hashlib",
    "json",
    "json.encoder",
)
# Their names change all the time.
RESTLESS = ("sys", "os", "warnings", "logging", "types", "typing", "abc", "exercises_guard")

_CODE = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_NEVER = {
    "sys.addaudithook": "added an audit hook",
    "gc.get_objects": "searched the memory of the grader (gc.get_objects)",
    "gc.get_referrers": "searched the memory of the grader (gc.get_referrers)",
    "ctypes.string_at": "read memory through ctypes",
    "ctypes.wstring_at": "read memory through ctypes",
    "ctypes.cdata": "read memory through ctypes",
}
_NOT_IN_A_CHECK = {
    "sys.settrace": "set a trace function while a check ran",
    "sys.setprofile": "set a profile function while a check ran",
    "sys._current_frames": "looked at the frames of a check",
}


@dataclass(frozen=True)
class Watched:
    """One module's or class's names as they were.

    Attributes:
        name: for the report.
        names: the live dictionary.
        items: its keys and values then; of a module that may change, its functions and classes only.
        keys: all its keys then.
        version: reads the dictionary's version, if it has one.
        strict: whether a new name counts as a change.
        steady: whether a change that was undone counts as one.
    """

    name: str
    names: dict[str, Any]
    items: tuple[tuple[str, Any], ...]
    keys: frozenset[str]
    version: Any
    strict: bool
    steady: bool


@dataclass(frozen=True)
class Snapshot:
    """All that the checks stand on, before a student's code ran."""

    watched: tuple[Watched, ...]
    modules: tuple[tuple[str, types.ModuleType], ...]
    functions: frozenset[int]
    has_versions: bool


def take_snapshot() -> Snapshot:
    """Snapshot of the checking code that is imported by now, and of what it uses."""
    modules = dict(sys.modules)
    strict = {
        name: module for name, module in modules.items() if name in STRICT or name.startswith(_below(STRICT))
    }
    used = {"builtins", *STEADY}
    for module in strict.values():
        for value in vars(module).values():
            name = value.__name__ if isinstance(value, types.ModuleType) else _home(value)
            used.add(name)
    lenient = {
        name: modules[name]
        for name in sorted(used)
        if name in modules and name not in strict and name not in RESTLESS and name != "__main__"
    }
    has_versions = _versions_work()
    watched: list[Watched] = []
    for name, module in strict.items():
        # A warning would put its register here; there is nothing wrong with a warning.
        vars(module).setdefault("__warningregistry__", {})
        _ = module.__annotations__
        watched.append(_watch(name, vars(module), True, True, has_versions))
    for name, module in lenient.items():
        watched.append(_watch(name, vars(module), False, name in STEADY, has_versions))
    for name, module in {**strict, **lenient}.items():
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == name and value.__flags__ & _HEAP_TYPE:
                names = next(iter(gc.get_referents(value.__dict__)))
                sure = name in strict
                # Python makes it when it is first looked at.
                _ = value.__annotations__ if sure else None
                watched.append(
                    _watch(f"{name}.{value.__qualname__}", names, sure, sure or name in STEADY, has_versions)
                )
    functions = {
        id(value) for one in watched for _, value in one.items if isinstance(value, types.FunctionType)
    }
    return Snapshot(tuple(watched), tuple(strict.items()), frozenset(functions), has_versions)


_HEAP_TYPE = 1 << 9


def _below(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _home(value: Any) -> str:
    home = getattr(value, "__module__", None)
    return home if isinstance(home, str) else ""


def _watch(name: str, names: dict[str, Any], strict: bool, steady: bool, has_versions: bool) -> Watched:
    items = tuple((key, value) for key, value in list(names.items()) if strict or callable(value))
    version = _version(names) if has_versions else None
    return Watched(name, names, items, frozenset(names), version, strict, steady)


def _version(names: dict[str, Any]) -> Any:
    # PyDictObject: reference count, type, number of items, version.
    return ctypes.c_uint64.from_address(id(names) + 3 * ctypes.sizeof(ctypes.c_void_p))


# From 3.12 on the lowest bits tell who watches the dictionary.
_SHIFT = 8 if sys.version_info >= (3, 12) else 0


def _versions_work() -> bool:
    """Whether a dictionary's version can be read here, and behaves like one."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    sample: dict[str, Any] = {"one": 1}
    version = _version(sample)
    seen = [version.value >> _SHIFT]
    for change in ("one", "two"):
        sample[change] = object()
        seen.append(version.value >> _SHIFT)
    sample.get("one")
    return len(set(seen)) == len(seen) and version.value >> _SHIFT == seen[-1]


def arm(snapshot: Snapshot, key: bytes) -> None:
    """Watch this process from now on; ``key`` signs the results of checks. There is no way back.

    The kernel speaks to the hook through ``sys.audit``:

    - ``exercises.verify``: look for changes now.
    - ``exercises.begin`` (nonce, proof): a check begins in the calling frame; the proof shows that the grader sent it.
    - ``exercises.end`` (text, answer): it has ended; appends to the list ``answer`` what counts, and its signature.
    """
    hook = _hook(snapshot, key)
    sys.addaudithook(hook)


def _hook(snapshot: Snapshot, key: bytes) -> Callable[[str, tuple[Any, ...]], None]:
    watched, modules, functions = snapshot.watched, snapshot.modules, snapshot.functions
    loaded, frame_at, digest, missing = sys.modules, sys._getframe, hashlib.blake2b, object()
    module_type = types.ModuleType
    shift = _SHIFT
    versions = [one.version.value >> shift if one.version is not None else 0 for one in watched]
    events = frozenset(
        {
            "exercises.verify",
            "exercises.begin",
            "exercises.end",
            "object.__setattr__",
            "open",
            *_NEVER,
            *_NOT_IN_A_CHECK,
        }
    )
    never, not_in_a_check, code = dict(_NEVER), dict(_NOT_IN_A_CHECK), _CODE
    reason: str | None = None
    frame: Any = None
    nonce = b""
    used: set[bytes] = set()

    def is_part(one: Watched, name: str) -> bool:
        module = loaded.get(f"{one.name}.{name}")
        return type(module) is module_type and one.names.get(name) is module

    def changed(in_check: bool) -> str | None:
        for number, one in enumerate(watched):
            if one.version is not None:
                now = one.version.value >> shift
                if now == versions[number]:
                    continue
                versions[number] = now
            for name, value in one.items:
                if one.names.get(name, missing) is not value:
                    return f"{one.name}.{name} was replaced"
            new = one.names.keys() - one.keys if len(one.names) != len(one.keys) else ()
            if one.strict and not all(is_part(one, name) for name in new):
                return f"{one.name} got a new name"
            if new:
                # A module that was imported only now becomes a name of its package.
                continue
            if one.version is not None and (one.strict or (in_check and one.steady)):
                return f"{one.name} was changed, and changed back"
        for name, module in modules:
            if loaded.get(name) is not module:
                return f"the module {name} was replaced"
        return None

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal reason, frame, nonce
        if event not in events:
            return
        if event == "exercises.verify":
            if frame is None:
                reason = reason or changed(False)
        elif event == "exercises.begin":
            given, proof = args
            if frame is None and given not in used and digest(given, key=key).hexdigest() == proof:
                frame, nonce = frame_at(1), given
                used.add(given)
                reason = reason or changed(False)
        elif event == "exercises.end":
            text, answer = args
            if frame is None or frame_at(1) is not frame or type(answer) is not list:
                reason = reason or "forged the end of a check"
                return
            reason = reason or changed(True)
            frame = None
            text = text if reason is None else f"!{reason}"
            answer.extend([text, digest(nonce + text.encode(), key=key).hexdigest()])
        elif event == "object.__setattr__":
            if args[1] in code and id(args[0]) in functions:
                reason = reason or f"{args[0].__qualname__}.{args[1]} was replaced"
        elif event == "open":
            path = args[0]
            if isinstance(path, str) and path.startswith("/proc/") and path.endswith("/mem"):
                reason = reason or f"opened {path}"
                raise PermissionError(f"{path} is not to be opened while work is graded")
        elif event in never:
            reason = reason or never[event]
            raise PermissionError(f"{event} is not allowed while work is graded")
        elif frame is not None:
            reason = reason or not_in_a_check[event]

    return hook

"""What a worker and its child processes say to each other: one JSON list per line. Used by `processes` and `child`.

Parent to child: `hello`, `job`, `stop`. Child to parent: `begun`, `said`, `logged`, `closed`, `changed`, `ended`,
`unfit`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import reduce
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from perdure.errors import KindError, PerdureError
from perdure.job.flow import Edge
from perdure.job.model import Claim, Failure, LiveJob, NewJob, Origin, Plan
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.kind import Kind
from perdure.worker.run import AnyKind

_REPORTS = {
    report.__name__: report
    for report in (Completed, Failed, TimedOut, Snoozed, Released, Cancelled, Skipped, Unreadable)
}
_BYTES = "$hex"
CUT_OFF = 83
"""The exit code of a child whose handler has closed the socket to the worker."""


class Ending(NamedTuple):
    """What a child reports of a run that has ended. `closed`: the job's end is in the database already."""

    report: Report
    duration_ms: int | None
    closed: bool
    children: tuple[NewJob, ...]


def framed(*frame: Any) -> bytes:
    """A frame as it travels. Pure ASCII, so that a line break can only be its end."""
    return json.dumps(frame, default=_hidden_in_json, separators=(",", ":")).encode("ascii") + b"\n"


class Unframer:
    """Gathers what arrives, in whatever pieces, into frames."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join((*self._pieces, line))
            self._pieces.clear()
            yield json.loads(whole, object_hook=_shown_again)
        if rest:
            self._pieces.append(rest)


def claim_of(row: list[Any]) -> Claim:
    live, *others = row
    return Claim(LiveJob(*live), *others)


def ending_of(frame: list[Any]) -> Ending:
    (name, fields), duration_ms, closed, children = frame
    return Ending(_report_of(name, fields), duration_ms, closed, tuple(_new_job_of(row) for row in children))


def ending_frame(ending: Ending) -> bytes:
    report = (type(ending.report).__name__, ending.report)
    return framed("ended", report, ending.duration_ms, ending.closed, ending.children)


def _report_of(name: str, fields: list[Any]) -> Report:
    if name in {"Failed", "TimedOut"}:
        fields = [Failure(*fields[0]), *fields[1:]]
    return _REPORTS[name](*fields)


def _new_job_of(row: list[Any]) -> NewJob:
    new = NewJob(*row)
    plan = Plan(*new.plan)
    origin = None if new.origin is None else Origin(*new.origin)
    plan = plan._replace(tags=tuple(plan.tags), names=tuple(plan.names))
    return new._replace(plan=plan, origin=origin, after=tuple(Edge(*edge) for edge in new.after))


def _hidden_in_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {_BYTES: value.hex()}
    raise TypeError(f"{type(value).__name__} does not travel between processes")


def _shown_again(tree: dict[str, Any]) -> Any:
    value = tree.get(_BYTES)
    return bytes.fromhex(value) if isinstance(value, str) and len(tree) == 1 else tree


# -- where a kind is imported from ------------------------------------------------------------------------------------

MAIN = "__main__"
SECOND_MAIN = "__perdure_main__"


class ImportPath(NamedTuple):
    """Where a new process imports an object from. `script`: the file of the main script, if the object is in that.

    As with multiprocessing's spawn, the main script is imported once more under another name: the code below
    `if __name__ == "__main__":` does not run again.
    """

    module: str
    name: str
    script: str | None = None

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def path_of_kind(kind: AnyKind) -> ImportPath:
    """Where this kind can be imported from. KindError: nowhere."""
    return _path_of(kind, kind.function, f'kind {kind.name!r} ({kind.place}) has isolation="process" but')


def path_of_middleware(middleware: object) -> ImportPath:
    return _path_of(middleware, middleware, f'the middleware {middleware!r} wraps jobs with isolation="process" but')


def load_object(path: ImportPath) -> Any:
    """Import the object, in this process. KindError: it is not there."""
    with _importing():
        module = importlib.import_module(path.module) if path.script is None else _main_again(path.script)
    there = _attribute_of(module, path.name)
    if there is None:
        raise _not_importable(f"{path} cannot be found in a new process; it")
    return there


def load_kind(path: ImportPath) -> AnyKind:
    kind = load_object(path)
    if not isinstance(kind, Kind):
        raise _not_importable(f"{path} is a kind in the worker but none in a new process; it")
    return cast("AnyKind", kind)


# -- in the worker ---------------------------------------------------------------------------------------------------


def _path_of(wanted: object, function: object, what: str) -> ImportPath:
    for module_name, name in _candidates(wanted, function):
        module = sys.modules.get(module_name)
        if module is not None and _attribute_of(module, name) is wanted:
            return _as_seen_from_outside(module_name, name, what)
    raise _not_importable(f"{what} no module has a name for it; it")


def _candidates(wanted: object, function: object) -> Iterator[tuple[str, str]]:
    """Its own name first; then any other global name of it: `work = app.job(isolation="process")(borrowed)`."""
    module_name: str | None = getattr(function, "__module__", None)
    name: str | None = getattr(function, "__qualname__", None)
    if module_name is not None and name is not None:
        yield module_name, name
    others = sorted(sys.modules.items(), key=lambda entry: (entry[0] != module_name, entry[0] == MAIN))
    for other, module in others:
        if isinstance(module, ModuleType):  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be put there
            yield from ((other, key) for key, value in list(vars(module).items()) if value is wanted)


def _as_seen_from_outside(module_name: str, name: str, what: str) -> ImportPath:
    if module_name != MAIN:
        return ImportPath(module_name, name)
    main = sys.modules[MAIN]
    spec: ModuleSpec | None = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module: importable under its real name
        if spec.name == MAIN or spec.name.endswith("." + MAIN):
            raise _not_importable(f"{what} it is in a __main__.py, which would run again; it")
        return ImportPath(spec.name, name)
    script: str | None = getattr(main, "__file__", None)
    if script is None or not Path(script).exists():
        raise _not_importable(f"{what} it was typed in, so no file holds it; it")
    return ImportPath(MAIN, name, str(Path(script).absolute()))


# -- in the child ----------------------------------------------------------------------------------------------------

_imports = 0


@contextmanager
def _importing() -> Generator[None, None, None]:
    global _imports  # noqa: PLW0603 - about this process, of which there is one
    _imports += 1
    try:
        yield
    finally:
        _imports -= 1


def check_not_importing() -> None:
    """A script that starts a worker when it is imported would do so in every child, without end."""
    if _imports:
        raise PerdureError(
            "a worker was started while a child process imports its script; put app.worker().run() below"
            ' if __name__ == "__main__":',
            code="worker_in_child",
        )


def _main_again(script: str) -> ModuleType:
    """The main script as a module under another name, and as `__main__` for code that looks for that."""
    known = sys.modules.get(SECOND_MAIN)
    if known is not None:
        return known
    loader = SourceFileLoader(SECOND_MAIN, script)  # named, because a script need not end in .py
    spec = importlib.util.spec_from_file_location(SECOND_MAIN, script, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    first = sys.modules[MAIN]
    sys.modules[MAIN] = sys.modules[SECOND_MAIN] = module
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules[MAIN] = first
        del sys.modules[SECOND_MAIN]
        raise
    return module


# -- both ------------------------------------------------------------------------------------------------------------


def _attribute_of(module: object, name: str) -> Any:
    """`Class.method` in a module. None: no such thing."""
    return reduce(lambda there, part: getattr(there, part, None), name.split("."), module)


def _not_importable(what: str) -> KindError:
    return KindError(
        f"{what} must be importable by the processes that run it: put it at the top level of a module, under a name"
        " (of a method, a partial or an object: name = app.job(…)(…))",
        code="kind_not_importable",
    )

"""What the user may have meant: apps, modules and databases that are there. Asked by `discovery`, `target` and `typed`.

Looks at file names and at the text of modules in the working directory and its src/; imports nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

_FILES = 300
"""How many files are looked at: a hint may not take long in a big folder."""
_BYTES = 200_000
_SHOWN = 4
_SKIPPED = ("tests", "node_modules", "venv", "build", "dist")
_AN_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:\w+\.)?Perdure\(", re.MULTILINE)


def in_module(module: ModuleType, apps: Iterable[str]) -> str:
    """Which apps the module holds."""
    named = [f"{module.__name__}:{name}" for name in apps]
    if not named:
        return f"{module.__name__} holds no Perdure app; write module:name for the variable that holds it"
    return f"{module.__name__} holds {', '.join(named)}"


def of_name(module: ModuleType, attribute: str, apps: Iterable[str]) -> str:
    """What a misspelt name of an app may have been meant to be."""
    apps = list(apps)
    near = get_close_matches(attribute, apps, n=1)
    return f"did you mean {module.__name__}:{near[0]}?" if near else in_module(module, apps)


def of_module(name: str) -> str:
    """A hint for a module that is not there: one in src/, one of nearly that name, or those that hold an app."""
    in_src = _file(Path("src"), name)
    if in_src is not None:
        return f"; {in_src} is there: set PYTHONPATH=src, or install your project with pip install -e ."
    known = dict(_modules())
    near = get_close_matches(name, list(known), n=1, cutoff=0.75)
    if near:
        return f"; did you mean {_with_app(near[0], known[near[0]])}?"
    return apps_here() or "; start the command in the folder that holds it"


def apps_here() -> str:
    """A hint that names the apps in the working directory. Empty: none was seen."""
    found = _apps()
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"; found here: {', '.join(found[:_SHOWN])}{more}"


def only_app_here() -> str | None:
    """The app in the working directory. None: there is none, or more than one."""
    found = _apps()
    return found[0] if len(found) == 1 else None


def of_nothing() -> str:
    """A hint for someone who named no app: those that are here, or how to get one."""
    return apps_here() or "; perdure init writes one to begin with"


def databases_here() -> str:
    """A hint that names database files and apps in the working directory. Empty: none was seen."""
    files = sorted(file.name for file in islice(Path().glob("*.db"), _FILES))
    found = [f"--url {name}" for name in files[:_SHOWN]] + [f"--app {name}" for name in _apps()[:_SHOWN]]
    return f"; found here: {', '.join(found)}" if found else ""


def _apps() -> list[str]:
    return [f"{dotted}:{name}" for dotted, file in _modules() for name in _apps_in(file)]


def is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def line_of(error: BaseException) -> str:
    """Where in the user's files an import failed. Empty: not in the working directory."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    here = str(Path.cwd())
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename.startswith(here)]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _file(folder: Path, name: str) -> Path | None:
    path = folder.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _modules() -> Iterator[tuple[str, Path]]:
    """The modules of the working directory and the packages below it, by dotted name."""
    for file in islice(_python_files(Path(), 3), _FILES):
        parts = file.with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _python_files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.suffix == ".py" and entry.stem.isidentifier() and entry != Path("__init__.py"):
            yield entry
    for entry in entries:
        if depth and entry.name.isidentifier() and entry.name not in _SKIPPED and entry.is_dir():
            yield from _python_files(entry, depth - 1)


def _apps_in(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return _AN_APP.findall(opened.read(_BYTES))
    except OSError:
        return []


def _with_app(dotted: str, file: Path) -> str:
    apps = _apps_in(file)
    return f"{dotted}:{apps[0]}" if apps else dotted

"""Which app a command is about, how it is imported, and hints where there is none. Called by `target` and `worker`.

The places are asked in order: the command's arguments, the environment, pyproject.toml in the working directory. Hints
look at file names and at the text of modules in the working directory and its src/; they import nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from itertools import islice
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

from perdure.errors import ConfigError

if TYPE_CHECKING:
    from perdure.app import Perdure


APP_VARIABLE = "PERDURE_APP"
_FILES = 300
"""How many files are looked at: a hint may not take long in a big folder."""
_BYTES = 200_000
_SHOWN = 4
_SKIPPED = ("tests", "node_modules", "venv", "build", "dist")
_AN_APP = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*(?:\w+\.)?Perdure\(", re.MULTILINE)


class Named(NamedTuple):
    """What one place says."""

    url: str | None
    app: str | None


def places(url: str | None, app: str | None) -> Iterator[Named]:
    """What each place says, the nearest first."""
    from perdure.config import URL_VARIABLE

    yield Named(url, app)
    yield Named(os.environ.get(URL_VARIABLE), os.environ.get(APP_VARIABLE))
    yield _project(Path("pyproject.toml"))


def find_app(url: str | None, app: str | None) -> tuple[Perdure, str]:
    """The app that the nearest place names, and its whole name. A URL named there or nearer is its database."""
    for named in places(url, app):
        url = url or named.url
        if not named.app:
            continue
        found, name = load_app(named.app)
        if url:
            found.url = url
        return found, name
    raise no_app("no app was named; give module:app or --app")


def no_app(what: str) -> ConfigError:
    """The error for someone who named no app, with those that are here, or how to get one."""
    hint = _hint_django() or _hint_apps_here() or "; perdure init writes one to begin with"
    return ConfigError(
        f"{what}, set {APP_VARIABLE}, or write app under [tool.perdure] in pyproject.toml{hint}", code="app_not_found"
    )


def load_app(name: str) -> tuple[Perdure, str]:
    """The app that `module:name` means, or the one in `module`, and its name with the variable it was found in.

    The working directory is importable.
    """
    from perdure.app import Perdure

    module_name, colon, attribute = name.partition(":")
    if not module_name or (colon and not attribute):
        raise ConfigError(f"{name!r} names no app; write module:name, such as shop.jobs:app", code="app_invalid")
    module = _imported(module_name)
    if not colon:
        app, variable = _only_app(module)
        return app, f"{module_name}:{variable}"
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(attribute, list(_apps_in_module(module)), n=1)
            hint = f"did you mean {module_name}:{near[0]}?" if near else _hint_of_module(module)
            raise ConfigError(f"there is no {attribute!r} in {module_name}; {hint}", code="app_not_found")
        found = getattr(found, part)
    if not isinstance(found, Perdure):
        what = f"{name} is of type {type(found).__name__}, not a Perdure app"
        raise ConfigError(f"{what}; {_hint_of_module(module)}", code="app_invalid")
    return found, name


def _only_app(module: ModuleType) -> tuple[Perdure, str]:
    """The app of a module that was named alone, and its variable: `app`, or the only one there is."""
    apps = _apps_in_module(module)
    name = "app" if "app" in apps else next(iter(apps), "")
    if name == "app" or len(set(map(id, apps.values()))) == 1:
        return apps[name], name
    what = f"{module.__name__} does not say which app is meant"
    raise ConfigError(f"{what}; {_hint_of_module(module)}", code="app_not_found")


def _apps_in_module(module: ModuleType) -> dict[str, Perdure]:
    from perdure.app import Perdure

    return {name: value for name, value in vars(module).items() if isinstance(value, Perdure)}


def _imported(name: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{name!r} is a file; name the module instead, such as {dotted}", code="app_invalid")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(_why_not(name, here, error), code="app_import_failed") from error


def _why_not(name: str, here: str, error: BaseException) -> str:
    """Either there is no such module, or it is there and fails."""
    missing = (
        isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}.")
    )
    is_name = all(part.isidentifier() for part in name.split("."))
    if missing or (isinstance(error, TypeError | ValueError) and not is_name):
        return f"there is no module {name!r} to import from {here}{_hint_for_module(name)}"
    where = _line_of(error)
    return f"the module {name!r} fails when it is imported ({type(error).__name__}: {error}){where}"


def _project(file: Path) -> Named:
    import tomllib

    try:
        with file.open("rb") as opened:
            content = tomllib.load(opened)
    except OSError:
        return Named(None, None)
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read ({error}); correct it", code="pyproject_invalid") from error
    settings = _table(_table(content, "tool"), "perdure")
    for name in settings:
        if name not in ("url", "app"):
            what = f"[tool.perdure] in {file} has {name!r}, which means nothing; known are url and app"
            raise ConfigError(what, code="pyproject_invalid")
    url, app = settings.get("url"), settings.get("app")
    if not isinstance(url, str | None) or not isinstance(app, str | None):
        raise ConfigError(f"url and app under [tool.perdure] in {file} must be texts", code="pyproject_invalid")
    return Named(url, app)


def _table(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{name}] in pyproject.toml must be a table", code="pyproject_invalid")
    return cast("Mapping[str, object]", table)


def _hint_of_module(module: ModuleType) -> str:
    named = [f"{module.__name__}:{name}" for name in _apps_in_module(module)]
    if not named:
        return f"{module.__name__} holds no Perdure app; write module:name for the variable that holds it"
    return f"{module.__name__} holds {', '.join(named)}"


def _hint_for_module(name: str) -> str:
    """A hint for a module that is not there: one in src/, one of nearly that name, or those that hold an app."""
    in_src = _file(Path("src"), name)
    if in_src is not None:
        return f"; {in_src} is there: set PYTHONPATH=src, or install your project with pip install -e ."
    known = dict(_modules())
    near = get_close_matches(name, list(known), n=1, cutoff=0.75)
    if near:
        apps = _apps_in_file(known[near[0]])
        return f"; did you mean {':'.join([near[0], *apps[:1]])}?"
    return _hint_apps_here() or "; start the command in the folder that holds it"


def _hint_apps_here() -> str:
    """A hint that names the apps in the working directory. Empty: none was seen."""
    found = _apps_here()
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"; found here: {', '.join(found[:_SHOWN])}{more}"


def _hint_django() -> str:
    """For the folder of a Django project, whose settings name the database."""
    return (
        "; for the tasks of this Django project write python manage.py perdure …" if Path("manage.py").exists() else ""
    )


def only_app_here() -> str | None:
    """The app in the working directory. None: there is none, or more than one."""
    found = _apps_here()
    return found[0] if len(found) == 1 else None


def hint_databases_here() -> str:
    """A hint that names database files and apps in the working directory. Empty: none was seen."""
    files = sorted(file.name for file in islice(Path().glob("*.db"), _FILES))
    found = [f"--url {name}" for name in files[:_SHOWN]] + [f"--app {name}" for name in _apps_here()[:_SHOWN]]
    return _hint_django() or (f"; found here: {', '.join(found)}" if found else "")


def _apps_here() -> list[str]:
    return [f"{dotted}:{name}" for dotted, file in _modules() for name in _apps_in_file(file)]


def _line_of(error: BaseException) -> str:
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


def _apps_in_file(file: Path) -> list[str]:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return _AN_APP.findall(opened.read(_BYTES))
    except OSError:
        return []

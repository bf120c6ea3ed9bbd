"""Which app a command means: by argument, --app, PERDURE_APP or pyproject.toml; and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import ConfigError, Perdure
from perdure.cli.discovery import find_app, load_app

ONE = 'from perdure import Perdure\nnumber = 5\nqueue = Perdure("one.db")\nalias = queue\n'
TWO = 'from perdure import Perdure\nfirst = Perdure("a.db")\nsecond = Perdure("b.db")\n'
NAMED = 'from perdure import Perdure\nfirst = Perdure("a.db")\napp = Perdure("app.db")\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules in it, that nothing is imported from yet."""
    before = set(sys.modules)
    for name, text in {"one": ONE, "two": TWO, "named": NAMED, "none": "number = 5\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(ONE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for variable in ("PERDURE_APP", "PERDURE_URL"):
        monkeypatch.delenv(variable, raising=False)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)) or name == "shop":
            del sys.modules[name]


def refused(name: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        load_app(name)
    return error.value


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("one:queue", "one.db"),
        ("one", "one.db"),
        ("shop.jobs", "one.db"),
        ("shop.jobs:alias", "one.db"),
        ("named", "app.db"),
        ("two:second", "b.db"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_app_is_found_by_name_or_because_it_is_the_only_one(name: str, url: str) -> None:
    assert load_app(name).url == url


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("two", "app_not_found", "two holds two:first, two:second"),
        ("none", "app_not_found", "none holds no Perdure app"),
        ("one:missing", "app_not_found", "there is no 'missing' in one; one holds one:queue, one:alias"),
        ("one:queue.missing", "app_not_found", "one holds one:queue"),
        ("one:number", "app_invalid", "one:number is of type int, not a Perdure app; one holds one:queue"),
        ("one.py", "app_invalid", "name the module instead, such as one"),
        ("./shop/jobs.py:app", "app_invalid", "name the module instead, such as shop.jobs"),
        ("one:", "app_invalid", "write module:name"),
        (":app", "app_invalid", "write module:name"),
        ("nowhere", "app_import_failed", "ModuleNotFoundError"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_cannot_be_found_is_said_with_what_was_found_instead(name: str, code: str, told: str) -> None:
    error = refused(name)

    assert error.code == code
    assert told in error.message


@pytest.mark.usefixtures("folder")
def test_without_any_name_every_way_to_give_one_is_told() -> None:
    with pytest.raises(ConfigError) as error:
        find_app(None, None)

    assert error.value.code == "app_not_found"
    for way in ("module:app", "--app", "PERDURE_APP", "[tool.perdure]"):
        assert way in error.value.message


def test_the_nearest_place_that_names_an_app_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text('[tool.perdure]\napp = "two:first"\n')
    assert find_app(None, None)[1] == "two:first"

    monkeypatch.setenv("PERDURE_APP", "two:second")
    assert find_app(None, None)[1] == "two:second"
    assert find_app(None, "one")[1] == "one"


def database_of(url: str | None, app: str | None) -> str:
    found: Perdure = find_app(url, app)[0]
    return found.url


def test_a_url_named_as_near_as_the_app_or_nearer_is_its_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert database_of("given.db", "two:first") == "given.db"
    monkeypatch.setenv("PERDURE_URL", "of_environment.db")
    assert database_of(None, "two:second") == "b.db"
    monkeypatch.setenv("PERDURE_APP", "one")
    assert database_of(None, None) == "of_environment.db"
    assert database_of("given.db", None) == "given.db"
    (folder / "pyproject.toml").write_text('[tool.perdure]\nurl = "of_project.db"\n')
    assert database_of("given.db", None) == "given.db"


def test_an_app_that_was_used_already_can_be_given_another_database(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "first.db")

    @app.job
    def note() -> None: ...

    note.enqueue()
    app.url = str(tmp_path / "second.db")
    note.enqueue()

    assert len(list(app.jobs())) == 1
    app.url = str(tmp_path / "first.db")
    assert len(list(app.jobs())) == 1
    app.close()

"""Which app a command means: by argument, --app, PERDURE_APP or pyproject.toml; and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import ConfigError, Perdure
from perdure.cli.discovery import find_app, load_app
from perdure.cli.target import database

ONE = 'from perdure import Perdure\nnumber = 5\nqueue = Perdure("one.db")\nalias = queue\n'
TWO = 'from perdure import Perdure\nfirst = Perdure("a.db")\nsecond = Perdure("b.db")\n'
NAMED = 'from perdure import Perdure\nfirst = Perdure("a.db")\napp = Perdure("app.db")\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with modules in it, that nothing is imported from yet."""
    before = set(sys.modules)
    for name, text in {"one": ONE, "two": TWO, "named": NAMED, "none": "number = 5\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name, text in {"broken": "a = 1\n1 / 0\n", "unbuilt": "import no_such_library\n", "crooked": "a = (\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "src" / "hidden").mkdir(parents=True)
    (tmp_path / "src" / "hidden" / "away.py").write_text("app = 1\n")
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
    assert load_app(name)[0].url == url


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
        ("one:queu", "app_not_found", "there is no 'queu' in one; did you mean one:queue?"),
        ("onne:queue", "app_import_failed", "there is no module 'onne'"),
        ("onne:queue", "app_import_failed", "did you mean one:queue?"),
        ("shop.job", "app_import_failed", "did you mean shop.jobs:queue?"),
        ("nowhere", "app_import_failed", "found here: named:first, named:app, one:queue, two:first and 2 more"),
        ("hidden.away:app", "app_import_failed", "src/hidden/away.py is there: set PYTHONPATH=src"),
        ("broken", "app_import_failed", "the module 'broken' fails when it is imported (ZeroDivisionError"),
        ("broken", "app_import_failed", "broken.py:2"),
        ("unbuilt", "app_import_failed", "(ModuleNotFoundError: No module named 'no_such_library')"),
        ("crooked", "app_import_failed", "crooked.py:1"),
        ("a b", "app_import_failed", "there is no module 'a b'"),
        ("..one", "app_import_failed", "there is no module '..one'"),
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
    for way in ("module:app", "--app", "PERDURE_APP", "[tool.perdure]", "found here: named:first"):
        assert way in error.value.message


def test_an_empty_folder_holds_nothing_to_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delenv("PERDURE_APP", raising=False)

    assert "start the command in the folder that holds it" in refused("nowhere:app").message
    with pytest.raises(ConfigError, match="perdure init writes one"):
        find_app(None, None)


def test_a_databases_file_and_the_apps_seen_are_named_where_none_was(folder: Path) -> None:
    (folder / "old.db").touch()

    with pytest.raises(ConfigError) as error, database(None, None):
        pass

    assert "found here: --url old.db, --app named:first" in error.value.message


def test_the_nearest_place_that_names_an_app_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text('[tool.perdure]\napp = "two:first"\n')
    assert find_app(None, None)[1] == "two:first"

    monkeypatch.setenv("PERDURE_APP", "two:second")
    assert find_app(None, None)[1] == "two:second"
    assert find_app(None, "one")[1] == "one:queue", "the whole name, also where the module alone was given"


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

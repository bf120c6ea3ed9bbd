"""Test sizes, for every suite: small by default, full with PERDURE_TEST_SIZE=full (`make test-full`)."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, settings

from perdure.clock import Micros
from perdure.errors import PerdureError, SchemaError
from perdure.ops.doctor import examine, is_healthy
from perdure.store.engine import drive
from perdure.store.migrate import migrations_of
from perdure.store.protocols import Store, StoreSettings
from perdure.store.repair import check
from perdure.store.sqlite.driver import SqliteDriver, open_reader, translated
from perdure.store.sqlite.schema import require_file, require_newest
from perdure.store.sqlite.statements import STATEMENTS

# A run that was started in the background may be told to ignore these, and so would every process that a test starts.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

SIZES = ("small", "full")
SIZE = os.environ.get("PERDURE_TEST_SIZE") or "small"

# No deadline and no "too slow": how long one example takes depends on the machine and on who else is using it.
settings.register_profile("small", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", settings.get_profile("small"), max_examples=1_000)


def pytest_configure(config: pytest.Config) -> None:
    if SIZE not in SIZES:
        raise pytest.UsageError(f"PERDURE_TEST_SIZE is {SIZE!r}; it must be one of: {', '.join(SIZES)}.")
    settings.load_profile(SIZE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `full` are shown as skipped in a small run, never silently left out."""
    if SIZE == "full":
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="runs at full size only (make test-full)"))


@pytest.fixture(scope="session")
def full_size() -> bool:
    """True when every number is to be as written in the requirements; False for the quick everyday run."""
    return SIZE == "full"


@pytest.fixture(autouse=True)
def examined(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the end every database in the test's folder can be read, and the doctor finds nothing wrong with it.

    Tests about databases that something is wrong with are marked `damaged`.
    """
    yield
    folder: Path | None = request.node.funcargs.get("tmp_path")
    if folder is None or request.node.get_closest_marker("damaged"):
        return
    for file in filter(Path.exists, folder.rglob("*.db")):  # a link may lead nowhere
        complaint = complaint_about(file)
        assert complaint is None, f"{file}: {complaint}"


def complaint_about(file: Path) -> str | None:
    """What is wrong with a file; None: nothing, or it has no tables of ours, or those of another version.

    Whatever keeps us from looking is wrong with it: a file that cannot be read is not one without findings.
    """
    try:
        require_file(file)
        with translated(file), closing(open_reader(file, StoreSettings())) as connection:
            faults = [line for (line,) in connection.execute("PRAGMA quick_check") if line != "ok"]
            if faults:
                return f"it is corrupt: {'; '.join(faults)}"
            require_newest(connection, file, migrations_of("sqlite"))
            findings = examine(cast("Store", _Looked(connection)))
    except SchemaError:
        return None
    except PerdureError as error:
        return str(error)
    return None if is_healthy(findings) else f"the doctor found {findings}"


class _Looked:
    """What the doctor asks of a store, on one connection: to open a store would take longer than his questions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._driver = SqliteDriver(connection, STATEMENTS)

    def check(self, name: str, now: Micros, limit: int) -> list[tuple[object, ...]]:
        return drive(check(name, now, limit), self._driver)

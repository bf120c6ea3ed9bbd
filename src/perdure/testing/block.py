"""`with app.testing() as t:`: what of the app is exchanged for the block, and how it comes back. Called by `app`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from perdure.clock import Micros, SystemClock, to_micros
from perdure.errors import InvalidOption, PerdureError, shown
from perdure.store.open import open_store
from perdure.testing.clock import KitClock, kit_ids
from perdure.testing.kit import Kit
from perdure.worker.worker import is_at_work

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.store.protocols import Store

_EXCHANGED = ("_url", "store", "clock", "ids", "kit")
"""Attributes of the app. Only `store` may be missing: it is made on first use."""


@contextmanager
def testing(app: Perdure, start: datetime | None, state: Mapping[str, Any] | None) -> Generator[Kit, None, None]:
    """The app on a temporary file with a manual clock, for all threads, until the block ends in whatever way.

    Nothing of the app's own database is opened, and nothing that the app had open is closed.
    """
    clock = KitClock(_instant(start))
    _refuse(app)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="perdure-test-", ignore_cleanup_errors=True))
        path = Path(folder, "jobs.db")
        store = _temporary(app, path)
        stack.callback(store.close)
        kit = Kit(app, clock, {} if state is None else state)
        before = {name: vars(app)[name] for name in _EXCHANGED if name in vars(app)}
        stack.callback(_put_back, app, before)
        stack.callback(kit.end)  # comes first: what coroutines do when they are cancelled still goes to the file here
        vars(app).update(_url=path, store=store, clock=clock, ids=kit_ids(clock), kit=kit)
        yield kit


def _put_back(app: Perdure, before: Mapping[str, Any]) -> None:
    vars(app).update(before)
    if "store" not in before:
        vars(app).pop("store", None)


def _temporary(app: Perdure, path: Path) -> Store:
    """As the app's own in all that a test could notice; it need not survive a power cut, and may be made anywhere."""
    own = app.config.store_settings()
    return open_store(str(path), own._replace(durability="normal", auto_migrate=True, allow_network_filesystem=True))


def _refuse(app: Perdure) -> None:
    if app.kit is not None:
        raise PerdureError(
            "app.testing() is on for this app already; use the kit of the block you are in (with pytest: the `perdure`"
            " fixture and a block of your own do not go together)",
            code="testing_nested",
        )
    if is_at_work(app.kinds):
        raise PerdureError(  # it would run the same jobs, or lose its database
            "a worker of this app runs in this process; end it first, and run jobs with t.drain()",
            code="testing_worker",
        )


def _instant(start: object) -> Micros:
    if start is None:
        return SystemClock().now()
    if not isinstance(start, datetime):
        raise InvalidOption(f"start must be a datetime with a time zone, not {shown(start)}")
    return to_micros(start)

"""`perdure kinds`: what the app declares, and what the stored jobs are of. Asks `app` and `ops/status`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.show import Json, print_json
from perdure.cli.tables import print_table
from perdure.cli.target import App, Url, existing, named_app
from perdure.errors import ConfigError, StoreError
from perdure.text import span

if TYPE_CHECKING:
    from perdure.kind import Kind
    from perdure.ops.status import StoredKind


def kinds(*, url: Url = None, app: App = None, json: Json = False) -> None:
    """List the kinds of an app, and of the jobs stored.

    Of the jobs, those that have not ended.
    """
    found = named_app(url, app)
    stored = _stored(url, app, needed=found is None)
    rows = (
        [] if found is None else [_declared(kind, stored) for kind in sorted(found.kinds, key=lambda kind: kind.name)]
    )
    known = set[str]() if found is None else set(found.kinds.versions())
    rows += [_undeclared(kind, by_app=found is not None) for kind in stored if kind.name not in known]
    if json:
        print_json(rows)
    elif not rows:
        print("No kinds: no job waits here, and no app was named that declares any.")
    else:
        columns = ("kind", "version", "live", "queue", "retry", "timeout", "isolation", "place")
        print_table(
            columns,
            [_row(row) for row in rows],
            keep=("version", "live", "retry", "timeout", "isolation"),
            drop=("isolation", "timeout", "retry", "version", "place", "queue"),
        )


def _stored(url: str | None, app: str | None, *, needed: bool) -> list[StoredKind]:
    """The kinds in the database. An app may be looked at before it has one."""
    from perdure.ops.status import stored_kinds

    try:
        with existing(url, app) as store:
            return stored_kinds(store)
    except (ConfigError, StoreError):
        if needed:
            raise
        return []


def _declared(kind: Kind[..., Any, ..., Any], stored: list[StoredKind]) -> dict[str, object]:
    names = kind.names
    timeout = kind.defaults.timeout_ms
    return {
        "name": kind.name,
        "aliases": list(kind.aliases),
        "version": kind.version,
        "queue": kind.defaults.queue,
        "max_attempts": kind.defaults.policy.max_attempts,
        "timeout_s": None if timeout is None else timeout / 1000,
        "isolation": _isolation(kind),
        "place": kind.place,
        "declared": True,
        "live": sum(known.live for known in stored if known.name in names),
    }


def _undeclared(kind: StoredKind, *, by_app: bool) -> dict[str, object]:
    return {
        "name": kind.name,
        "aliases": [],
        "version": kind.version,
        "queue": None,
        "max_attempts": None,
        "timeout_s": None,
        "isolation": None,
        "place": None,
        "declared": False if by_app else None,
        "live": kind.live,
    }


def _isolation(kind: Kind[..., Any, ..., Any]) -> str:
    if kind.isolation is not None:
        return kind.isolation
    return "loop" if kind.is_async else "thread"


def _row(kind: dict[str, Any]) -> tuple[str, ...]:
    retry, timeout = kind["max_attempts"], kind["timeout_s"]
    return (
        kind["name"],
        str(kind["version"]),
        str(kind["live"]),
        kind["queue"] or "-",
        "-" if retry is None else str(retry),
        "-" if timeout is None else span(timeout),
        kind["isolation"] or "-",
        _short(kind["place"]) or ("not in this app" if kind["declared"] is False else "-"),
    )


def _short(place: str | None) -> str | None:
    """The path from here, where it is below."""
    if place is None:
        return None
    try:
        return str(Path(place).relative_to(Path.cwd()))
    except ValueError:
        return place

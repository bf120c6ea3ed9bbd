"""`Config`: every setting in one frozen object, checked once. Built by `app`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast

from perdure.checks import ABOVE_ZERO, check_choice, check_known, check_name, check_number, refused
from perdure.errors import ConfigError, InvalidOption, Remedy, shown
from perdure.store.protocols import StoreSettings
from perdure.store.rows import Ended

URL_VARIABLE = "PERDURE_URL"
DURABILITIES = ("full", "normal")
_LISTS = (tuple, list)


_QUARTER = timedelta(days=90)
_AGES = ("completed", "cancelled", "skipped", "failed", "logs", "records")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what has ended is kept; None: for ever. The only list of what may be removed: docs/retention.md.

    Templates, schedules, idempotency keys and every job that has not ended are not in it: they stay.
    """

    completed: timedelta | None = _QUARTER
    cancelled: timedelta | None = _QUARTER
    skipped: timedelta | None = _QUARTER
    failed: timedelta | None = None
    kinds: Mapping[str, timedelta | None] = field(default_factory=dict[str, "timedelta | None"])
    """For jobs of these kinds that completed, were cancelled or skipped: instead of the three above."""
    logs: timedelta | None = timedelta(days=7)
    """For log lines, whatever job they are of."""
    records: timedelta | None = _QUARTER
    """For what is left of other things: workers that stopped, closed reservations, slots of built-in work, missed
    instants, expired locks."""
    archive: Literal["table"] | Path | None = None
    """Where jobs go that are old enough: the archive table, files in this folder, or nowhere."""

    def __post_init__(self) -> None:
        archive = cast("Any", self.archive)
        if not isinstance(cast("Any", self.kinds), Mapping):
            raise ConfigError(f"retention: kinds must be a dict of names and time spans, not {shown(self.kinds)}")
        ages = {
            name: getattr(self, name) for name in ("completed", "cancelled", "skipped", "failed", "logs", "records")
        }
        ages |= {f"kinds[{name!r}]": age for name, age in self.kinds.items()}
        for name, age in ages.items():
            if age is not None and not (isinstance(age, timedelta) and age >= timedelta()):
                must_be = "a timedelta, not negative, or None to keep it for ever"
                raise refused(f"retention: {name}", must_be, age, error=ConfigError)
        if archive not in (None, "table") and not isinstance(archive, Path):
            must_be = 'None, "table", or the pathlib.Path of a folder'
            raise refused("retention: archive", must_be, archive, error=ConfigError)

    def age_of(self, end: Ended) -> timedelta | None:
        """How long after its end a job is kept. None: for ever. One that a new job continues counts as completed."""
        if end.state == "failed" and end.successor is None:
            return self.failed
        if end.kind in self.kinds:
            return self.kinds[end.kind]
        return {"cancelled": self.cancelled, "skipped": self.skipped}.get(end.state, self.completed)

    @property
    def shortest(self) -> timedelta | None:
        """No job is removed sooner after its end than this. None: none ever is."""
        ages = (self.completed, self.cancelled, self.skipped, self.failed, *self.kinds.values())
        return min((age for age in ages if age is not None), default=None)


@dataclass(frozen=True, slots=True)
class Config:
    """How an app behaves. Seconds end in `_s`, bytes in `_bytes`."""

    name: str = "perdure"
    """The owner of the jobs this app enqueues."""
    durability: str = "full"
    """`full`: an acknowledged job survives a power cut. `normal`: it survives a crash of the process only."""
    auto_migrate: bool | None = None
    """Upgrade the schema on first use. None: yes on SQLite, no on servers."""
    busy_timeout_s: float = 5.0
    """How long a write waits for its turn before DatabaseBusy."""
    allow_network_filesystem: bool = False
    """Use SQLite where its locks may not work. The file can be corrupted."""
    max_payload_bytes: int = 1024 * 1024
    """Largest payload. A result may have 1 MiB."""
    queue: str = "default"
    """Where jobs go that name no queue."""
    listen_url: str | None = field(default=None, repr=False)
    """PostgreSQL: where workers listen for new work, if the app's URL leads to a pooler. A direct connection."""
    lease_s: float = 60.0
    """How long a node may be silent before its jobs are rescued."""
    imports: tuple[str, ...] = ()
    """Modules that declare kinds; imported by the worker."""
    retention: Retention = field(default_factory=Retention)
    """How long ended jobs and other records are kept; workers remove what is older."""

    @classmethod
    def of(cls, knobs: dict[str, Any]) -> Config:
        """A checked config. Unknown settings and impossible values are refused by name."""
        known = [field.name for field in fields(cls)]
        check_known(knobs, known, "setting", code="config_unknown", error=ConfigError)
        config = cls(**knobs)
        config.check()
        return config

    def check(self) -> None:
        """Refuse values that cannot work; the error names the setting."""
        from perdure.options import check_queue  # not at the top: probes need only the name of a variable

        check_choice(self.durability, "durability", DURABILITIES, error=ConfigError)
        for knob in ("busy_timeout_s", "lease_s", "max_payload_bytes"):
            value = getattr(self, knob)
            check_number(value, knob, ABOVE_ZERO, 10**12, must_be="a positive number", error=ConfigError)
        try:
            check_name(self.name, "name")
            check_queue(self.queue)
        except InvalidOption as error:
            raise ConfigError(error.message) from None
        for knob, kinds, must_be in (
            ("auto_migrate", (bool, NoneType), "True, False or None"),
            ("allow_network_filesystem", bool, "True or False"),
            ("listen_url", (str, NoneType), "the URL of a PostgreSQL server, or None"),
            ("retention", Retention, "Retention(…), such as Retention(completed=timedelta(days=30))"),
        ):
            value = getattr(self, knob)
            if not isinstance(value, kinds):
                raise refused(knob, must_be, value, error=ConfigError)
        imports = cast("Any", self.imports)
        if not isinstance(imports, _LISTS) or not all(
            isinstance(name, str) for name in cast("tuple[Any, ...]", imports)
        ):
            raise refused(
                "imports", 'a list of names of modules, such as ["shop.jobs"]', self.imports, error=ConfigError
            )

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            durability=self.durability,
            busy_timeout_s=self.busy_timeout_s,
            auto_migrate=self.auto_migrate,
            allow_network_filesystem=self.allow_network_filesystem,
            listen_url=self.listen_url,
        )


def resolve_url(url: str | os.PathLike[str] | None) -> str:
    """The URL given, else the one in the environment."""
    found = _text(url) if url is not None else os.environ.get(URL_VARIABLE)
    if not found:
        raise ConfigError(
            "no database was named",
            code="url_missing",
            remedy=Remedy(
                f"pass a path or URL, as in Perdure('jobs.db'), or set {URL_VARIABLE}",
                f"give --url, name it in Perdure('jobs.db'), or set {URL_VARIABLE}",
            ),
        )
    return found


def _text(url: object) -> str:
    given = url
    text = os.fspath(cast("os.PathLike[str]", url)) if isinstance(url, os.PathLike) else url
    if not isinstance(text, str):
        raise ConfigError(
            f"a database is named by a path or URL, as in Perdure('jobs.db'), not by {shown(given)}", code="url_invalid"
        )
    return text

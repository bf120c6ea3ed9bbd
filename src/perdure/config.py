"""`Config`: every setting in one frozen object, checked once. Built by `app`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, cast

from perdure.checks import ABOVE_ZERO, check_choice, check_known, check_name, check_number
from perdure.errors import ConfigError, InvalidOption, Remedy, shown
from perdure.store.protocols import StoreSettings

URL_VARIABLE = "PERDURE_URL"
DURABILITIES = ("full", "normal")
_LISTS = (tuple, list)


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
    lease_s: float = 60.0
    """How long a node may be silent before its jobs are rescued."""
    imports: tuple[str, ...] = ()
    """Modules that declare kinds; imported by the worker."""

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
        for knob, kinds in (
            ("auto_migrate", (bool, NoneType)),
            ("allow_network_filesystem", bool),
            ("imports", _LISTS),
        ):
            if not isinstance(getattr(self, knob), kinds):
                raise ConfigError(f"{knob} cannot be {shown(getattr(self, knob))}; see the settings of Perdure(…)")

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            durability=self.durability,
            busy_timeout_s=self.busy_timeout_s,
            auto_migrate=self.auto_migrate,
            allow_network_filesystem=self.allow_network_filesystem,
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

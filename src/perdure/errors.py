"""Every error a user can meet, in one tree. Raised everywhere; imports nothing.

PerdureError
├── ConfigError             a setting or URL that cannot work
├── KindError               a kind that is unknown, declared twice, or cannot be a job
├── InvalidInput            refused before anything was written
│   ├── InvalidPayload      the arguments do not fit the kind, or are not JSON
│   └── InvalidOption       an option that is unknown or has an impossible value
├── KeyConflict             a key that is already taken
├── JobNotFound             no job has this id
├── FlowNotFound            no flow has this id
├── TransitionRefused       the job's state does not allow this
├── JobFailed               `wait` saw the job end without a result
├── WaitTimeout             `wait` gave up; the job continues
├── LockNotHeld             a named lease that is not, or no longer, ours
├── LimitReached            a place of a limit could not be had in time; nothing is held
├── ScheduleError           a schedule that is unknown, or cannot be what is asked of it
├── TemplateError           a template that is unknown, archived, changed meanwhile, or does not fit its kind
├── ReservationBusy         the queue could not be had for direct work in time; nothing is reserved
├── ReservationExpired      a reservation that is over: jobs of its queue may run again
└── StoreError              the database said no
    ├── DatabaseUnavailable     cannot be opened, read or written at all
    ├── DatabaseBusy            locked for longer than the time-out; nothing was written
    ├── SchemaError             the file's schema is not one this version can use
    └── TransactionError        the transaction given as `tx=` cannot be used
        └── TransactionTooLong      it blocked all other writers for too long and was rolled back

Each error has a stable `code` (see docs/errors.md) and a message that says what happened, which value it was, and what
to do next. Codes are finer than classes: catch the class, report the code. `option` and `remedy` let the command line
say the same in its own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple


def shown(value: object) -> str:
    """A value as messages show it: short, and it never fails (an int of 5,000 digits has no repr)."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr may do anything
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def not_among(what: str, value: object, known: Sequence[str], besides: str = "") -> str:
    """The message for a value that is not one of the known ones, with the nearest of them. `besides`: what else may be
    done."""
    from difflib import get_close_matches

    *others, last = (f'"{one}"' for one in known)
    listed = f"{', '.join(others)} or {last}" if others else last
    near = get_close_matches(value[:80], known, n=1, cutoff=0.5) if isinstance(value, str) else []
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f"{what} must be {listed}{besides}, not {shown(value)}{hint}"


class Remedy(NamedTuple):
    """What to do next: `python` for a program, `shell` for someone at a terminal.

    In `shell`, `{database}` is replaced by the options that name the database.
    """

    python: str
    shell: str


class PerdureError(Exception):
    """The root of every error Perdure raises on purpose.

    `code`: stable, for programs and for docs/errors.md. `option`: the option or setting that is wrong; the message
    begins with its name. `remedy`: the message ends with its `python`, after a semicolon.
    """

    default_code: ClassVar[str] = "perdure_error"

    def __init__(
        self, message: str, *, code: str | None = None, option: str | None = None, remedy: Remedy | None = None
    ) -> None:
        super().__init__(message if remedy is None else f"{message}; {remedy.python}")
        self.code = code or self.default_code
        """Stable, for programs; docs/errors.md lists all."""
        self.option = option
        """The option or setting that is wrong. None: it is about none."""
        self.remedy = remedy
        """What to do next, for a program and for someone at a terminal. None: the message says it."""

    @property
    def message(self) -> str:
        """The text, without the code that `str()` puts behind it."""
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class ConfigError(PerdureError):
    default_code = "config_invalid"


class KindError(PerdureError):
    default_code = "kind_invalid"


class InvalidInput(PerdureError, ValueError):
    default_code = "input_invalid"


class Problem(NamedTuple):
    """What is wrong with one argument: its place, quoted, and the wrong value, if there is one, as messages show it."""

    place: str
    wrong: str
    value: str | None = None

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.place} {self.wrong}"
        return f"{self.place}: {self.wrong}, got {self.value}" if self.place else f"{self.wrong}, got {self.value}"


class InvalidPayload(InvalidInput):
    """For arguments that do not fit their kind: `kind`, `problems`, and `parameters`, the text of the signature."""

    default_code = "payload_invalid"
    kind: str | None = None
    """The name of the kind. None: the arguments are of no kind."""
    problems: Sequence[Problem] = ()
    """What is wrong, one for each argument: `place`, `wrong` and `value`, as texts."""
    parameters: str = ""
    """The signature, as text."""


class InvalidOption(InvalidInput):
    default_code = "option_invalid"


class KeyConflict(PerdureError):
    """A key is taken, and the caller asked not to be given the job that has it. Nothing was written."""

    default_code = "key_conflict"


class JobNotFound(PerdureError, LookupError):
    default_code = "job_not_found"


class FlowNotFound(PerdureError, LookupError):
    default_code = "flow_not_found"


class TransitionRefused(PerdureError):
    default_code = "transition_refused"


class JobFailed(PerdureError):
    """`kind.wait` saw the job end as failed, cancelled or skipped: there is no result."""

    default_code = "job_failed"


class WaitTimeout(PerdureError, TimeoutError):
    default_code = "wait_timeout"


class LockNotHeld(PerdureError):
    default_code = "lock_not_held"


class LimitReached(PerdureError):
    default_code = "limit_reached"


class ScheduleError(PerdureError):
    default_code = "schedule_invalid"


class TemplateError(PerdureError):
    default_code = "template_invalid"


class ReservationBusy(PerdureError, TimeoutError):
    default_code = "reservation_busy"


class ReservationExpired(PerdureError):
    default_code = "reservation_expired"


class StoreError(PerdureError):
    default_code = "store_error"


class DatabaseUnavailable(StoreError):
    default_code = "database_unavailable"


class DatabaseBusy(StoreError):
    default_code = "database_busy"


class SchemaError(StoreError):
    default_code = "schema_mismatch"


class TransactionError(StoreError):
    default_code = "tx_invalid"


class TransactionTooLong(TransactionError):
    default_code = "tx_too_long"

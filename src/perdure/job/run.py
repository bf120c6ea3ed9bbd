"""`Run`: one attempt as users see it. Made by the store from a row."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from perdure.clock import to_datetime
from perdure.ids import to_uuid
from perdure.job.model import Damage, RunRow, json_of, readable
from perdure.job.states import RunState


class Run:
    """One attempt at a job, as recorded. Once closed it never changes."""

    __slots__ = ("_damage", "row")

    _damage: Damage
    row: RunRow
    """Every stored field, undecoded."""

    def __init__(self, row: RunRow, damage: Damage | None = None) -> None:
        object.__setattr__(self, "row", row)
        object.__setattr__(self, "_damage", damage or {})

    @classmethod
    def read(cls, columns: Sequence[object]) -> Run:
        """The run of a row in the database, whatever somebody has written into that."""
        row, damage = readable(RunRow, columns, keep="id")
        if row.state not in _STATES:
            damage["state"] = f"{row.state!r} is no state"
            row = row._replace(state=RunState.RUNNING.value if row.finished_at is None else RunState.LOST.value)
        return cls(row, damage)

    @property
    def unreadable(self) -> dict[str, str]:
        """What is wrong with the stored row, by column: a value that somebody else has written there. Empty: nothing.

        A number, time or id that cannot be one is shown as 0 or None here, artifacts and metrics as none.
        """
        return self._damage | self._json("artifacts", list)[1] | self._json("metrics", dict)[1]

    def _json(self, name: str, wanted: type) -> tuple[Any, Damage]:
        try:
            value = json_of(getattr(self.row, name))
            if value is None or isinstance(value, wanted):
                return value, {}
            why = f"it is no {wanted.__name__}"
        except ValueError as error:
            why = str(error)
        return None, {name: f"it cannot be read: {why}"}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Run is frozen (tried to set {name!r})")

    @property
    def id(self) -> UUID:
        return to_uuid(bytes(16) if "id" in self._damage else self.row.id)

    @property
    def job_id(self) -> UUID:
        return to_uuid(self.row.job_id)

    @property
    def kind(self) -> str:
        return self.row.kind

    @property
    def state(self) -> RunState:
        return RunState(self.row.state)

    @property
    def node_id(self) -> UUID:
        return to_uuid(self.row.node_id)

    @property
    def attempt(self) -> int:
        return self.row.attempt

    @property
    def life(self) -> int:
        return self.row.life

    @property
    def started_at(self) -> datetime:
        return to_datetime(self.row.started_at)

    @property
    def finished_at(self) -> datetime | None:
        return None if self.row.finished_at is None else to_datetime(self.row.finished_at)

    @property
    def wait_ms(self) -> int:
        """How long the job could have started before it did."""
        return self.row.wait_ms

    @property
    def duration_ms(self) -> int | None:
        """By the monotonic clock of the node that ran it."""
        return self.row.duration_ms

    @property
    def exit_code(self) -> int | None:
        return self.row.exit_code

    @property
    def error_type(self) -> str | None:
        return self.row.error_type

    @property
    def error_message(self) -> str | None:
        return self.row.error_message

    @property
    def traceback(self) -> str | None:
        return self.row.traceback

    @property
    def artifacts(self) -> list[str]:
        return self._json("artifacts", list)[0] or []

    @property
    def log_path(self) -> str | None:
        return self.row.log_path

    @property
    def metrics(self) -> dict[str, Any]:
        return self._json("metrics", dict)[0] or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.row == other.row

    def __hash__(self) -> int:
        return hash(self.row.id)

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.kind} attempt {self.attempt} {self.state}>"


_STATES = frozenset(state.value for state in RunState)

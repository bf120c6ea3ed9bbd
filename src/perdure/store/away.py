"""What tells an outage from a refusal: errors of a store whose database is not there. Asked by worker and rescue."""

from __future__ import annotations

from perdure.errors import DatabaseBusy, DatabaseUnavailable, StoreError


class ConnectionLost(StoreError):
    """The connection ended; whether the last statement took effect is unknown."""

    default_code = "connection_lost"


class Locked(DatabaseBusy):
    """Someone's open transaction held what was needed for longer than we wait. No outage: whatever else there is to do
    can be done, and this again later."""


AWAY = (DatabaseBusy, DatabaseUnavailable, ConnectionLost)
"""The database was not there, or its answer was lost: no refusal, so the same is tried again, however often."""

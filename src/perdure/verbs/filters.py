"""What listings and bulk verbs may be asked for. Used by `app`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.clock import to_micros
from perdure.errors import InvalidOption, not_among, shown
from perdure.ids import JobId, id_floor
from perdure.job.states import RunState, State
from perdure.options import unknown_option
from perdure.store.answers import FIRST_ID, LAST_ID, JobFilter, RunFilter

_JOB_FILTERS = ("state", "queue", "kind", "owner", "tag", "business_key", "idempotency_key", "since", "until")
_RUN_FILTERS = ("state", "kind", "owner", "since", "until")


def job_filter(filters: Mapping[str, Any]) -> JobFilter:
    """A checked filter; unknown names and impossible values are refused."""
    plain, from_id, below = _checked(filters, _JOB_FILTERS, State)
    return JobFilter(**plain, from_id=from_id, below=below)


def run_filter(job_id: JobId | None, filters: Mapping[str, Any]) -> RunFilter:
    """The same for runs."""
    plain, from_id, below = _checked(filters, _RUN_FILTERS, RunState)
    return RunFilter(job_id, **plain, from_id=from_id, below=below)


def _checked(
    filters: Mapping[str, Any], known: tuple[str, ...], states: type[StrEnum]
) -> tuple[dict[str, str], bytes, bytes]:
    plain: dict[str, str] = {}
    for name, value in filters.items():
        if name not in known:
            raise unknown_option(name, known)
        if value is None or name in ("since", "until"):
            continue
        if not isinstance(value, str):
            raise InvalidOption(f"{name}= takes text, not {shown(value)}", code="filter_invalid")
        plain[name] = value
    if "state" in plain:
        plain["state"] = _state(plain["state"], states)
    since, until = filters.get("since"), filters.get("until")
    return plain, FIRST_ID if since is None else _floor(since), LAST_ID if until is None else _floor(until)


def _state(value: str, states: type[StrEnum]) -> str:
    try:
        return states(value).value
    except ValueError:
        raise InvalidOption(not_among("state", value, list(states)), code="filter_invalid") from None


def _floor(moment: object) -> bytes:
    """Ids carry their time of creation, to the millisecond."""
    if not isinstance(moment, datetime):
        raise InvalidOption(f"since= and until= take an aware datetime, not {shown(moment)}", code="filter_invalid")
    return id_floor(to_micros(moment))

"""Why a listing is empty: a queue or kind that is not there, and what was nearly written so. Asked by the commands.

Names are no errors: a queue is made by its first job, and jobs of a kind may yet come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from perdure.cli.show import visible
from perdure.errors import shown
from perdure.store.rows import EVERY_QUEUE

if TYPE_CHECKING:
    from perdure.app import Perdure

_LOOKED_AT = 200
_SHOWN = 6


def none_like_that(door: Perdure, what: str, filters: Mapping[str, Any]) -> str:
    """The sentence for an empty answer. With filters, it names what they ask for that is not there."""
    if not filters:
        return f"{what}."
    told = f"{what} like that"
    joint = ": "
    for why in (_no_queue(door, filters.get("queue")), _no_kind(door, filters.get("kind"))):
        if why is not None:
            told += f"{joint}{why}"
            joint = " And " if why.endswith("?") else ", and "
    return told if told.endswith("?") else f"{told}."


def no_queue_called(name: str, known: Collection[str], *, yet: bool = False) -> str:
    """That there is none, or none yet, and which one may be meant, or which there are."""
    others = [each for each in known if each != EVERY_QUEUE]
    return f"no queue is called {shown(name)}{' yet' if yet else ''}; {_instead(name, others)}"


def queue_names(door: Perdure) -> list[str]:
    return [queue.name for queue in door.queues.list()]


def _no_queue(door: Perdure, name: str | None) -> str | None:
    if name is None:
        return None
    known = queue_names(door)
    return None if name in known else no_queue_called(name, known)


def _no_kind(door: Perdure, name: str | None) -> str | None:
    if name is None or next(door.jobs(kind=name, limit=1), None) is not None:
        return None
    declared = [kind.name for kind in door.kinds]
    if name in door.kinds.versions():
        return f"there has been no job of kind {shown(name)} yet"
    stored = [job.kind for job in islice(door.jobs(), _LOOKED_AT)]
    return f"no job is of a kind called {shown(name)}; {_instead(name, dict.fromkeys([*declared, *stored]))}"


def _instead(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    names = visible(", ".join(sorted(known)[:_SHOWN])) or "none"
    return f"there {'is' if len(known) == 1 else 'are'} {names}{more}"

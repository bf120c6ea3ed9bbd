"""Why a listing is empty: a queue or kind that does not exist, and what was probably meant. Asked by the commands.

An unknown name is no error: a queue is made by its first job, and jobs of a kind may come later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from perdure.cli.render import visible
from perdure.errors import shown
from perdure.store.rows import EVERY_QUEUE

if TYPE_CHECKING:
    from perdure.app import Perdure


_LOOKED_AT = 200
_SHOWN = 6


def none_like_that(perdure: Perdure, what: str, filters: Mapping[str, Any]) -> str:
    """The sentence for an empty listing. With filters, it names what they ask for that does not exist."""
    if not filters:
        return f"{what}."
    text = f"{what} like that"
    joint = ": "
    for why in (_no_queue(perdure, filters.get("queue")), _no_kind(perdure, filters.get("kind"))):
        if why is not None:
            text += f"{joint}{why}"
            joint = " And " if why.endswith("?") else ", and "
    return text if text.endswith("?") else f"{text}."


def no_queue_called(name: str, known: Collection[str], *, yet: bool = False) -> str:
    """That there is none, or none yet, and which one may be meant, or which there are."""
    others = [each for each in known if each != EVERY_QUEUE]
    return f"no queue is called {shown(name)}{' yet' if yet else ''}; {_suggestion(name, others)}"


def queue_names(perdure: Perdure) -> list[str]:
    return [queue.name for queue in perdure.queues.list()]


def _no_queue(perdure: Perdure, name: str | None) -> str | None:
    if name is None:
        return None
    known = queue_names(perdure)
    return None if name in known else no_queue_called(name, known)


def _no_kind(perdure: Perdure, name: str | None) -> str | None:
    if name is None or next(perdure.jobs(kind=name, limit=1), None) is not None:
        return None
    declared = [kind.name for kind in perdure.kinds]
    if name in perdure.kinds.versions():
        return f"there has been no job of kind {shown(name)} yet"
    stored = [job.kind for job in islice(perdure.jobs(), _LOOKED_AT)]
    return f"no job is of a kind called {shown(name)}; {_suggestion(name, dict.fromkeys([*declared, *stored]))}"


def _suggestion(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    names = visible(", ".join(sorted(known)[:_SHOWN])) or "none"
    return f"there {'is' if len(known) == 1 else 'are'} {names}{more}"

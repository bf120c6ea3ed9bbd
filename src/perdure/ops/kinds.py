"""Which kinds the stored jobs are of. Asked by `perdure kinds` and `perdure check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from perdure.store.protocols import Store
from perdure.store.rows import StoredKind


class Orphans(NamedTuple):
    """Live jobs that the code at hand cannot run."""

    kind: StoredKind
    reason: str


def stored_kinds(store: Store) -> list[StoredKind]:
    """The kinds of all jobs that have not ended, by name and version. Empty: there are no such jobs."""
    return store.live_kinds()


def orphans(stored: Sequence[StoredKind], known: Mapping[str, int]) -> list[Orphans]:
    """Those whose kind is gone, or that were written by newer code than this; `known`: name → newest version."""
    found: list[Orphans] = []
    for kind in stored:
        if kind.name not in known:
            found.append(Orphans(kind, "no kind of that name is declared"))
        elif kind.version > known[kind.name]:
            found.append(Orphans(kind, f"written as version {kind.version}, the code has {known[kind.name]}"))
    return found

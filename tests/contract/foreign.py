"""Stores as users may write them: one that lacks a protocol, one with a mistake, one that is no SQL store at all."""

from __future__ import annotations

from typing import Any, cast

from perdure.clock import Micros
from perdure.store.open import open_store
from perdure.store.protocols import Store
from perdure.store.store import SqlStore


class WithoutLocks(SqlStore):
    """Knows no leases."""

    def take_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        raise NotImplementedError("this store has no locks")


class Generous(SqlStore):
    """Gives every lock to everybody."""

    def take_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        super().take_lock(name, owner, now, ttl_us)
        return True


class Foreign:
    """Keeps its jobs where the suite cannot look."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name == "runner":
            raise AttributeError(name)
        return getattr(self._store, name)


def _opened(url: str) -> SqlStore:
    store = open_store(url)
    assert isinstance(store, SqlStore)
    return store


def open_without_locks(url: str) -> Store:
    return WithoutLocks(_opened(url).runner)


def open_generous(url: str) -> Store:
    return Generous(_opened(url).runner)


def open_foreign(url: str) -> Store:
    return cast("Store", Foreign(_opened(url)))

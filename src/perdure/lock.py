"""`app.lock`: a named lease with one holder at a time. Calls the store."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Self

from perdure.checks import ABOVE_ZERO, KEY_LIMIT, Span, check_name, check_span
from perdure.errors import LockNotHeld

if TYPE_CHECKING:
    from perdure.app import Perdure


class Lock:
    """A lease by name: held until released, or until `ttl` seconds have passed without `renew`.

    Work that takes longer than the lease must renew it, and stop when that fails: another process may hold it by then.
    """

    def __init__(self, app: Perdure, name: str, ttl: Span) -> None:
        must_be = "seconds, more than 0, or a timedelta"
        ttl_s = check_span(ttl, "ttl", ABOVE_ZERO, 10**10, must_be=must_be, code="ttl_invalid")
        self.name = check_name(name, "the lock's name", KEY_LIMIT)
        """Whoever asks for the same name wants the same lock."""
        self.owner = secrets.token_hex(16)
        """This object, among all that want the lock; random."""
        self._app = app  # not its store: a lock kept at module level must follow the app to another database
        self._ttl_us = max(1, round(ttl_s * 1_000_000))

    def acquire(self) -> bool:
        """Try once. False: someone else holds it."""
        return self._app.store.take_lock(self.name, self.owner, self._app.clock.now(), self._ttl_us)

    def renew(self) -> bool:
        """Hold it for another `ttl`. False: it has run out, and may be someone else's."""
        return self._app.store.renew_lock(self.name, self.owner, self._app.clock.now(), self._ttl_us)

    def release(self) -> bool:
        """Give it back. False: it was not ours any more."""
        return self._app.store.release_lock(self.name, self.owner)

    @property
    def held(self) -> bool:
        """It is ours now, by the database. Asked each time."""
        return self._app.store.lock_holder(self.name, self._app.clock.now()) == self.owner

    def __enter__(self) -> Self:
        if not self.acquire():
            raise LockNotHeld(
                f"lock {self.name!r} is held by someone else; try again later, or use what acquire() returns",
                code="lock_taken",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

"""Named leases: one holder at a time, for as long as it renews. Called by `app.lock` through `store`."""

from __future__ import annotations

from typing import cast

from perdure.clock import Micros
from perdure.store.sql.engine import Call, Op


def take(name: str, owner: str, now: Micros, ttl_us: int) -> Op[bool]:
    """True: held by `owner` until now + ttl. A lease that ran out can be taken; one's own is extended."""
    params = {"name": name, "owner": owner, "now": now, "expires_at": now + ttl_us}
    return (yield Call("take_lock", params)).changed == 1


def renew(name: str, owner: str, now: Micros, ttl_us: int) -> Op[bool]:
    """False: the lease had run out or belongs to someone else; nothing was changed."""
    params = {"name": name, "owner": owner, "now": now, "expires_at": now + ttl_us}
    return (yield Call("renew_lock", params)).changed == 1


def release(name: str, owner: str) -> Op[bool]:
    """False: it was not ours to release."""
    return (yield Call("release_lock", {"name": name, "owner": owner})).changed == 1


def holder(name: str, now: Micros) -> Op[str | None]:
    """Who holds the lease now. None: nobody."""
    rows = (yield Call("read_lock", {"name": name})).rows
    if not rows or cast("Micros", rows[0][1]) <= now:
        return None
    return cast("str", rows[0][0])

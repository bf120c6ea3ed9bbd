"""`app.limits`: set, pause, show and hold limits and rates. Calls the store."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from perdure.checks import Span, check_name, check_span, check_whole
from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidInput, InvalidOption, LimitReached
from perdure.ids import to_uuid
from perdure.limit.key import key_of, name_of, shown, value_of
from perdure.limit.rule import AT_MOST, HEAVIEST, Rule
from perdure.store.rows import HOLD_LEASE_US, KeyState, LimitState
from perdure.worker.lifecycle import log_limit, log_lost_hold

if TYPE_CHECKING:
    from perdure.app import Perdure

LEASE_S = HOLD_LEASE_US / 1_000_000
RENEW_EVERY_S = LEASE_S / 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25
KIND_NAME_LIMIT = 128 + len(":rate")


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """A limit or rate as it was when it was read. `most` is what counts now: as set by hand, else as declared; None: no
    code declares it any more, and nobody has set it."""

    name: str
    sort: str
    most: int | None
    declared: int | None
    set_by_hand: bool
    per: float | None
    burst: int | None
    paused_at: datetime | None
    kinds: tuple[str, ...]
    """Whose code declares it."""

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One key of a limit. `in_use`: the weight of the jobs that run, of a rate of those that started in its window.
    `in_line` is counted up to 1,000. `opens_at`: of a rate. `jobs`: ids of jobs that hold it, ten at most; `blocks`:
    how many blocks of code do (`app.limits.hold`)."""

    limit: str
    key: str | None
    most: int | None
    set_by_hand: bool
    in_use: int
    in_line: int
    paused_at: datetime | None
    opens_at: datetime | None
    jobs: tuple[UUID, ...]
    blocks: int = 0

    @property
    def paused(self) -> bool:
        return self.paused_at is not None


class Limits:
    """Limits and rates by name. `key` is one value of a limit that has `by`, such as a tenant."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    def declare(self, *limits: Rule) -> None:
        """Make limits known that no kind names, for `.options(limit=…)`. Workers tell the database when they start."""
        self._app.kinds.declare_limits(limits)

    def set(self, name: str, most: int, *, key: object = None, new: bool = False) -> None:
        """Another number, by hand: at once, for jobs that wait already, until `reset`. It wins over the code.

        InvalidOption: nobody knows a limit of that name. `new`: also then."""
        check_whole(most, "a limit", 1, AT_MOST, code="limit_rule_invalid")
        self._check(name, key, new=new)
        self._app.store.set_limit(_name(name), most, _key(name, key), self._app.clock.now())
        self._log("set", name, key)

    def reset(self, name: str, *, key: object = None) -> None:
        """Back to what the code declares."""
        self._check(name, key)
        self._app.store.reset_limit(_name(name), _key(name, key))
        self._log("reset", name, key)

    def pause(self, name: str, *, key: object = None) -> None:
        """From now on nothing of it starts; running jobs continue. A repeat changes nothing."""
        self._check(name, key)
        self._app.store.pause_limit(_name(name), _key(name, key), self._app.clock.now())
        self._log("pause", name, key)

    def resume(self, name: str, *, key: object = None) -> None:
        """Let it continue. A repeat changes nothing."""
        self._check(name, key)
        self._app.store.pause_limit(_name(name), _key(name, key), None)
        self._log("resume", name, key)

    def show(self, name: str) -> list[KeyInfo]:
        """The keys of a limit that are in use, have a line, or were set by hand; of very many, not all."""
        states = self._app.store.limit_keys(_name(name), self._app.clock.now())
        return [_info(name, state) for state in states]

    def list(self) -> list[LimitInfo]:
        """Every limit that is declared or set, by name."""
        return [_limit(state) for state in self._app.store.limits()]

    def hold(self, name: str, *, key: object = None, weight: int = 1, wait: Span | None = None) -> Hold:
        """Hold a place of a limit while a block runs: `with app.limits.hold("gpu", weight=2, wait=30): …`

        LimitReached: it had no room within `wait` seconds (0: at once; None: wait for ever). The place is given back at
        the end of the block; if the process dies, half a minute later. InvalidOption: nobody knows the limit.
        """
        wait_s = None if wait is None else check_span(wait, "wait", 0, 10**9, code="wait_invalid")
        check_whole(weight, "weight", 1, HEAVIEST, code="limit_rule_invalid")
        check_key(self._app, _name(name), key)
        return Hold(self._app, key_of(name, key, has_value=key is not None), weight, wait_s)

    def _check(self, name: str, key: object, *, new: bool = False) -> None:
        """A mistyped name or key would change a limit that no job has, and look as if it had worked."""
        if key is not None:
            check_key(self._app, _name(name), key)
        if not new:
            check_known(self._app, _name(name))

    def _log(self, verb: str, name: str, key: object) -> None:
        log_limit(
            verb, shown(key_of(name, key, has_value=key is not None)), in_transaction=self._app.store.in_transaction
        )


def check_known(app: Perdure, name: str) -> None:
    """Refuse a limit that neither this code declares nor the database knows."""
    if app.kinds.rule(name) is not None:
        return
    known = [state.name for state in app.store.limits()]
    if name not in known:
        raise InvalidOption(_unknown(name, [*known, *(rule for rule, *_ in app.kinds.rules())]), code="limit_unknown")


def _unknown(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    names = sorted(set(known))
    near = get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(map(repr, names[:_SHOWN])) or 'none'}"
    new = f"app.limits.set({name!r}, NUMBER, new=True) makes one"
    return f"there is no limit {name!r}; {meant}; {new}"


_SHOWN = 10


def check_key(app: Perdure, name: str, key: object) -> None:
    """Refuse a key that no job has, as far as this code knows: of a limit that goes by a value, and of one that does
    not."""
    rule = app.kinds.rule(name)
    if rule is None or (rule.by is None) == (key is None):
        return
    needs = "has one key for all jobs: leave out key="
    if rule.by is not None:
        needs = f"goes by {repr(rule.by) if isinstance(rule.by, str) else 'a value'}: name one with key="
    raise InvalidOption(f"limit {name!r} {needs}", code="limit_key_invalid")


class Hold:
    """A place of a limit for a block of code: what `app.limits.hold` gives.

    It is renewed while the block runs. Where that could not be done in time, as after an outage or in a process that
    stood still, `lost` is True, a warning is logged, and others may have the place: long work looks at it.
    """

    def __init__(self, app: Perdure, key: str, weight: int, wait_s: float | None) -> None:
        self._app = app
        self._key = key
        self._weight = weight
        self._wait_s = wait_s
        self._is_known = False
        self._id: bytes | None = None
        self._over = threading.Event()
        self._lost = threading.Event()

    def acquire(self) -> bool:
        """Try once. False: there is no room."""
        if self._id is not None:
            raise InvalidInput(
                "this place of a limit is held already; make another with app.limits.hold", code="hold_used"
            )
        if not self._is_known:  # asked once, however often it is tried
            check_known(self._app, name_of(self._key))
            self._is_known = True
        holder = self._app.ids.new()
        if not self._app.store.take_hold(self._key, self._weight, holder, self._app.clock.now(), HOLD_LEASE_US):
            return False
        self._id = holder
        self._over, self._lost = threading.Event(), threading.Event()
        args = (holder, self._over, self._lost)
        threading.Thread(target=self._renew, args=args, name="perdure-hold", daemon=True).start()
        return True

    @property
    def lost(self) -> bool:
        """Its lease ended before it was renewed: somebody else may have the place."""
        return self._lost.is_set()

    def release(self) -> None:
        """Give it back. A repeat changes nothing."""
        if self._id is not None:
            self._over.set()
            self._app.store.drop_hold(self._key, self._id)
            self._id = None

    def _renew(self, holder: bytes, over: threading.Event, lost: threading.Event) -> None:
        while not over.wait(RENEW_EVERY_S):
            try:
                renewed = self._app.store.renew_hold(self._key, holder, self._app.clock.now(), HOLD_LEASE_US)
            except Exception:  # noqa: BLE001, S112 - an outage; the lease is longer than two tries
                continue
            if not renewed and not over.is_set():
                lost.set()
                log_lost_hold(shown(self._key))
                return

    def __enter__(self) -> Self:
        clock = self._app.clock
        deadline = None if self._wait_s is None else clock.boottime() + self._wait_s
        pause = FIRST_PAUSE_S
        while not self.acquire():
            left = None if deadline is None else deadline - clock.boottime()
            if left is not None and left <= 0:
                raise LimitReached(
                    f"limit {shown(self._key)} has no room for {self._weight} within {self._wait_s:g} s; wait longer"
                    " (wait=), or look who holds it with app.limits.show"
                )
            clock.wait(pause if left is None else min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _name(value: object) -> str:
    return check_name(value, "the name of a limit", KIND_NAME_LIMIT)


def _key(name: str, value: object) -> str | None:
    return None if value is None else key_of(name, value)


def _limit(state: LimitState) -> LimitInfo:
    import json

    most = state.most if state.set_most is None else state.set_most
    kinds: Sequence[Any] = json.loads(state.declared_by)
    per = None if state.per_us is None else state.per_us / 1_000_000
    by_hand = state.set_most is not None
    of = (state.most, by_hand, per, state.burst, _time(state.paused_at), tuple(map(str, kinds)))
    return LimitInfo(state.name, state.sort, most, *of)


def _info(name: str, state: KeyState) -> KeyInfo:
    most = state.most
    times = (_time(state.paused_at), _time(state.opens_at))
    in_use = (state.in_use, state.in_line)
    jobs = tuple(map(to_uuid, state.holders))
    return KeyInfo(name, value_of(state.key), most, state.set_most is not None, *in_use, *times, jobs, state.blocks)


def _time(at: Micros | None) -> datetime | None:
    return None if at is None else to_datetime(at)

"""Named leases: one holder at a time, as long as it renews. Protocol `LockOperations`."""

from __future__ import annotations

from perdure.testing.contract.rig import Rig

TTL = 10_000_000


def test_a_free_lock_is_taken_and_names_its_holder(rig: Rig) -> None:
    name = rig.key("lock")
    assert rig.store.lock_holder(name, rig.now) is None

    assert rig.store.take_lock(name, "ann", rig.now, TTL)
    assert rig.store.lock_holder(name, rig.now) == "ann"


def test_a_held_lock_is_not_taken(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)

    assert not rig.store.take_lock(name, "bob", rig.now, TTL)
    assert rig.store.lock_holder(name, rig.now) == "ann"


def test_locks_of_different_names_do_not_meet(rig: Rig) -> None:
    assert rig.store.take_lock(rig.key("one"), "ann", rig.now, TTL)
    assert rig.store.take_lock(rig.key("two"), "bob", rig.now, TTL)


def test_a_lock_runs_out_at_its_time_and_not_before(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=9.999999)
    assert rig.store.lock_holder(name, rig.now) == "ann"
    assert not rig.store.take_lock(name, "bob", rig.now, TTL)

    rig.clock.advance(milliseconds=0.001)
    assert rig.store.lock_holder(name, rig.now) is None
    assert rig.store.take_lock(name, "bob", rig.now, TTL)
    assert rig.store.lock_holder(name, rig.now) == "bob"


def test_the_holder_extends_its_lock_by_taking_or_renewing_it(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=6)
    assert rig.store.renew_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=6)
    assert rig.store.take_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=6)

    assert rig.store.lock_holder(name, rig.now) == "ann"


def test_only_the_holder_renews_a_lock(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)

    assert not rig.store.renew_lock(name, "bob", rig.now, TTL)
    assert not rig.store.renew_lock(rig.key("free"), "ann", rig.now, TTL)


def test_a_lock_that_ran_out_is_not_renewed(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=10)

    assert not rig.store.renew_lock(name, "ann", rig.now, TTL)
    assert rig.store.lock_holder(name, rig.now) is None


def test_only_the_holder_releases_a_lock(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)

    assert not rig.store.release_lock(name, "bob")
    assert rig.store.lock_holder(name, rig.now) == "ann"
    assert rig.store.release_lock(name, "ann")
    assert not rig.store.release_lock(name, "ann")
    assert rig.store.take_lock(name, "bob", rig.now, TTL)


def test_whoever_lost_a_lock_to_another_cannot_release_it(rig: Rig) -> None:
    name = rig.key("lock")
    rig.store.take_lock(name, "ann", rig.now, TTL)
    rig.clock.advance(seconds=10)
    rig.store.take_lock(name, "bob", rig.now, TTL)

    assert not rig.store.release_lock(name, "ann")
    assert rig.store.lock_holder(name, rig.now) == "bob"

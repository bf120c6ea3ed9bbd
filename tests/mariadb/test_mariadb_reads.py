"""No operation of a worker, and no question that people ask all the time, reads many rows of MariaDB for a few: on
tables with thousands of rows, whatever the statistics say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple, cast

import pytest

from perdure.clock import Micros
from perdure.ids import FlowId, JobId
from perdure.job.flow import Edge
from perdure.job.reports import Completed, Failed, Finish, Report, Snoozed
from perdure.job.states import State
from perdure.limit.key import key_of
from perdure.store import read
from perdure.store.rows import FIRST_ID, LAST_ID, Edit, JobFilter, Lane, LimitRule, LogLine, Place, RunFilter, Turn
from perdure.testing.contract.rig import BROKEN, HOPELESS, NONE, Rig
from tests.mariadb.reads import watched
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb

MANY = 2_000


class Shop(NamedTuple):
    """A database in which much waits, and much has ended."""

    rig: Rig
    ended: list[JobId]
    flow: FlowId
    """Which has many members, in a queue of its own."""

    def queue(self, name: str) -> str:
        return self.rig.key(name)


PORTION = 500


def fill(rig: Rig) -> Shop:
    ended = history(rig)
    for _ in range(MANY // PORTION):
        rig.enqueue_many(PORTION)
        rig.enqueue_many(PORTION, delay_s=3600)
        rig.enqueue_many(PORTION, queue=rig.key("parked"))
    while rig.claim(PORTION, queue=rig.key("parked"), kinds=NONE) or rig.in_order(rig.key("parked")):
        pass
    keyed = [
        rig.new(queue=rig.key("keyed"), business_key=rig.key(f"b{n}"), idempotency_key=rig.key(f"i{n}"))
        for n in range(MANY)
    ]
    for first in range(0, MANY, PORTION):
        rig.store.enqueue(keyed[first : first + PORTION])
    lines(rig)
    parents = rig.enqueue_many(PORTION, queue=rig.key("parents"))
    rig.enqueue(queue=rig.key("parents"), after=tuple(map(Edge, parents)))
    rig.store.enqueue([rig.new(queue=rig.key("children"), after=(Edge(one),)) for one in parents for _ in (1, 2)])
    ended_flows(rig)
    return Shop(rig, ended, open_flow(rig))


def history(rig: Rig) -> list[JobId]:
    """Jobs that have ended, and what they wrote."""
    ended: list[JobId] = []
    for number in range(MANY // PORTION):
        ended += rig.enqueue_many(PORTION, queue=rig.key("ended"), tags=("red",))
        claims = rig.claim(PORTION, queue=rig.key("ended"))
        report = Completed() if number else Failed(HOPELESS)
        rig.store.finish([rig.report(claim, report) for claim in claims], rig.now)
        runs = [(claim.live.run_id, claim.job_id) for claim in claims]
        rig.store.append_log([LogLine(run, 1, job, rig.now, "INFO", "hi") for run, job in runs if run is not None])
    return ended


def lines(rig: Rig) -> None:
    """A long line, and many short ones. Nobody is awake."""
    tenant = rig.key("tenant")
    rig.store.declare_limits([LimitRule(tenant, "at_once", 1)], [rig.kind], rig.now)
    rig.enqueue_many(PORTION, queue=rig.key("limited"), limit_key=f"{key_of(tenant, 'one')}*1")
    for number in range(MANY // 40):
        rig.enqueue_many(5, queue=rig.key("limited"), limit_key=f"{key_of(tenant, number)}*1")
    other = rig.register()
    while rig.execute("SELECT 1 FROM {ready} WHERE state = 'held' AND held_by IS NULL LIMIT 1"):
        rig.claim(200, queue=rig.key("limited"), node=other)
    rig.settle()


def open_flow(rig: Rig) -> FlowId:
    flow = rig.new_flow(open=True)
    rig.store.start_flows([flow], [rig.new(after=(Edge(flow.id),), queue=rig.key("flow"))._replace(flow_id=flow.id)])
    for first in range(0, MANY, PORTION):
        rig.store.add_members(flow.id, rig.members(flow, PORTION, first, queue=rig.key("flow")), rig.now)
    return flow.id


def ended_flows(rig: Rig) -> None:
    flows = [rig.new_flow() for _ in range(MANY // 4)]
    rig.store.start_flows(flows, [job for flow in flows for job in rig.members(flow, 2, queue=rig.key("old"))])
    while claims := rig.claim(250, queue=rig.key("old")):
        turned = rig.store.turn(Turn([rig.report(claim, Completed()) for claim in claims]), rig.now)
        rig.store.turn(Turn(flows=turned.flows), rig.now)
    rig.settle()


STATISTICS = ["fresh", "analysed when empty", pytest.param("analysed", marks=pytest.mark.full)]


@pytest.fixture(scope="module", params=STATISTICS)
def shop(request: pytest.FixtureRequest, mariadb_server: MariaDBServer) -> Iterator[Shop]:
    url = mariadb_server.new_database()
    rig = Rig(url)
    rig.store.upgrade()
    with closing(mariadb_server.connect(url, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW FULL TABLES WHERE table_type = 'BASE TABLE'")
        names = [name for name, _ in cursor.fetchall()]
        if request.param == "analysed when empty":
            for name in names:
                cursor.execute(f"ALTER TABLE {name} STATS_AUTO_RECALC = 0")
            cursor.execute(f"ANALYZE TABLE {', '.join(names)}")
        shop = fill(rig)
        if request.param == "analysed":
            cursor.execute(f"ANALYZE TABLE {', '.join(names)}")
    yield shop
    rig.close()


# -- what is done ----------------------------------------------------------------------------------------------------

Act = Callable[[Shop, Rig], object]


def turn(shop: Shop, _: Rig) -> None:
    rig = shop.rig
    done = [rig.report(claim, Completed()) for claim in rig.claim(20)]
    rig.store.turn(Turn(done, promote=20, lanes=[Lane(rig.queue, 20)], claimer=rig.claimer(20), settle=True), rig.now)


def other_ends(shop: Shop, _: Rig) -> None:
    rig = shop.rig
    claims = rig.claim(9)
    reports: list[Report] = [Failed(BROKEN), Failed(HOPELESS), Snoozed(1)]
    rig.store.finish([rig.report(claim, reports[n % 3]) for n, claim in enumerate(claims)], rig.now)


def claims_of_what_was_parked(shop: Shop, _: Rig) -> None:
    claims = shop.rig.claim(20, queue=shop.queue("parked"))
    assert len(claims) == 20


def parks(shop: Shop, rig: Rig) -> None:
    rig.enqueue_many(20)
    rig.claim(20, kinds=NONE)


def promotes(shop: Shop, rig: Rig) -> None:
    rig.clock.advance(seconds=3601)
    assert shop.rig.store.promote(rig.now, 20) == 20


def looks_for_work(shop: Shop, _: Rig) -> None:
    shop.rig.store.glance(shop.rig.node, {shop.rig.kind: 1})
    shop.rig.store.held_by(shop.rig.node)
    shop.rig.store.overdue(shop.rig.now, 20)


def next_in_lines(*keys: str) -> Act:
    """The jobs that hold these keys end, and the next of each line starts, and what was left word of is looked at."""

    def act(shop: Shop, _: Rig) -> None:
        rig, queue = shop.rig, shop.queue("limited")
        done: list[Finish] = []
        for key in keys:
            of_key = key_of(rig.key("tenant"), key)
            [(holder,)] = rig.execute("SELECT holder FROM {permit} WHERE key = :key", key=of_key)
            done.append(Finish(rig.live(cast("JobId", holder)), Completed(), JobId(rig.ids.new())))
        took = rig.store.turn(Turn(done, lanes=[Lane(queue, 30)], claimer=rig.claimer(30), settle=True), rig.now)
        assert len(took.claims) == len(keys)
        rig.store.turn(Turn(settle=True), rig.now)

    return act


def limits_are_changed(shop: Shop, _: Rig) -> None:
    tenant = shop.rig.key("tenant")
    for most in (2, 1):
        shop.rig.store.set_limit(tenant, most, None, shop.rig.now)
        shop.rig.store.turn(Turn(settle=True), shop.rig.now)
    shop.rig.store.reset_limit(tenant, None)
    shop.rig.store.turn(Turn(settle=True), shop.rig.now)


def takes_what_is_awake(shop: Shop, rig: Rig) -> None:
    rig.store.declare_limits([LimitRule(rig.key("few"), "at_once", 3)], [rig.kind], rig.now)
    rig.enqueue_many(50, limit_key=f"{rig.key('few')}*1")
    assert len(rig.claim(20)) == 3


def a_rate_opens(shop: Shop, rig: Rig) -> None:
    rig.store.declare_limits([LimitRule(rig.key("rate"), "sliding", 5, 10_000_000)], [rig.kind], rig.now)
    rig.enqueue_many(50, limit_key=f"{rig.key('rate')}*1")
    assert len(rig.claim(20)) == 5
    rig.clock.advance(seconds=11)
    rig.store.promote(rig.now, 20)
    assert len(rig.claim(20)) == 5


def limits_are_shown(shop: Shop, _: Rig) -> None:
    rig = shop.rig
    rig.store.limits()
    rig.store.limit_keys(rig.key("tenant"), rig.now)
    waiting = rig.listed(JobFilter("held", shop.queue("limited")), 1)[0]
    assert rig.store.line_ahead(rig.live(waiting.row.id)) >= 0


def members_end(shop: Shop, _: Rig) -> None:
    rig = shop.rig
    claims = rig.claim(20, queue=shop.queue("flow"))
    turned = rig.store.turn(Turn([rig.report(claim, Completed()) for claim in claims]), rig.now)
    rig.store.turn(Turn(flows=turned.flows), rig.now)


def parents_end(shop: Shop, _: Rig) -> None:
    """Each of them has dependents; and all have one together."""
    rig = shop.rig
    claims = rig.claim(20, queue=shop.queue("parents"))
    rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)
    rig.settle()


def one_with_many_dependents_ends(shop: Shop, rig: Rig) -> None:
    parent = rig.enqueue()
    rig.enqueue_many(520, after=(Edge(parent),), queue=rig.key("after"))
    rig.finish(rig.claim_one(), Completed())
    rig.settle()
    assert len(rig.claim(1, queue=rig.key("after"))) == 1


def a_flow_is_paused_cancelled_and_retried(shop: Shop, rig: Rig) -> None:
    flow_id, _ = rig.start_flow(120)
    for verb in ("pause", "resume", "cancel"):
        rig.store.change_flow(flow_id, verb, rig.now)
        rig.settle()
    assert rig.flow(flow_id).state == "cancelled"
    rig.store.retry_flow(flow_id, rig.now)
    rig.settle()


def a_flow_grows_and_is_sealed(shop: Shop, rig: Rig) -> None:
    flow = rig.new_flow(open=True, key=rig.key("one"))
    rig.store.start_flows([flow], [rig.new(after=(Edge(flow.id),))._replace(flow_id=flow.id)])
    rig.store.add_members(flow.id, rig.members(flow, 20), rig.now)
    rig.store.seal_flow(flow.id, rig.now)


def flows_are_shown(shop: Shop, _: Rig) -> None:
    store = shop.rig.store
    for state in (None, "running", "completed"):
        store.flows(state, None, LAST_ID, 20)
    store.flow(shop.flow)
    store.flow_jobs(shop.flow, None, None, 20)
    store.flow_edges(shop.flow, None, 20)
    store.results(shop.flow, 0, 20)
    store.inner_flows(shop.flow)


def a_node_dies(shop: Shop, rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(20)
    rig.claim(20, node=node)
    rig.store.stop(node, "crash", rig.now)
    assert node in rig.store.nodes_left_behind()
    assert rig.rescue(node) == 20
    rig.store.rescue_flows(rig.now)


def people_decide(shop: Shop, _: Rig) -> None:
    """About jobs in the middle of a long queue."""
    rig = shop.rig
    one, two = rig.in_order()[200:202]
    rig.pause(one)
    rig.resume(one)
    for place in (Place(None, None, True), Place(None, None, False), Place(two, None, False), Place(None, two, False)):
        rig.store.move(one, place, rig.now)
    rig.store.set_priority(one, -7, rig.now)
    rig.store.count_ahead(rig.job(two), 100)
    rig.store.supersede(one, rig.new(), rig.now)
    live, row = rig.live(two), rig.row(two)
    rig.store.edit(Edit(row, live._replace(version=live.version + 1), ("blue",)), live.version)
    rig.cancel(two)
    rig.store.retry(two, rig.now)
    rig.cancel(two)
    rig.store.retry_as_new(two, JobId(rig.ids.new()), rig.now)
    rig.store.delete(two)
    rig.store.waited_for(one, 20)


def keys_are_taken(shop: Shop, rig: Rig) -> None:
    known = {"idempotency_key": shop.rig.key("i7"), "business_key": shop.rig.key("b7"), "kind": shop.rig.kind}
    [again] = rig.store.enqueue([rig.new(**known)])  # type: ignore[arg-type]
    [held] = rig.store.enqueue([rig.new(business_key=shop.rig.key("b8"), conflict="return")])
    assert again.deduplicated
    assert held.deduplicated
    rig.store.enqueue([rig.new(idempotency_key=rig.key(f"i{n}"), business_key=rig.key(f"b{n}")) for n in range(20)])


def a_queue_is_held(shop: Shop, rig: Rig) -> None:
    queue = shop.queue("parked")
    rig.store.pause_queue(queue, rig.now)
    rig.store.pause_queue(queue, None)
    reservation = rig.reserve(shop.queue("ended"))
    rig.store.enter_reservation(reservation.id, rig.until(), rig.now)
    rig.store.close_reservation(reservation.id, "released", rig.now)


def what_is_old_goes(shop: Shop, _: Rig) -> None:
    store, now = shop.rig.store, shop.rig.now
    page = store.ended(None, LAST_ID, 100)
    alone = [end for end in page if end.flow_id is None]
    store.remove(alone[:20])
    store.archive(alone[20:40], now)
    store.archived_jobs(LAST_ID, 20)
    after = store.ended(page[-1], LAST_ID, 50)
    assert after
    for flow in store.old_flows(None, Micros(now + 1), 20)[:3]:
        store.remove(store.flow_ends(flow.id, 50))
        assert store.remove_flow(flow.id)
    assert store.remove_logs(Micros(now + 1), 20) == 20
    store.remove_records(Micros(now + 1), 20)
    store.remove_nodes(None, now, 20)


FILTERS: dict[str, Callable[[Shop], JobFilter]] = {
    "all": lambda _: JobFilter(),
    **{state: lambda _, state=state: JobFilter(state=state) for state in sorted(State)},  # type: ignore[misc]
    "queue": lambda shop: JobFilter(queue=shop.queue("keyed")),
    "kind": lambda shop: JobFilter(kind=shop.rig.kind),
    "owner": lambda _: JobFilter(owner="contract"),
    "tag": lambda _: JobFilter(tag="red"),
    "business key": lambda shop: JobFilter(business_key=shop.rig.key("b9")),
    "idempotency key": lambda shop: JobFilter(idempotency_key=shop.rig.key("i9")),
    "state and queue": lambda shop: JobFilter(state="scheduled", queue=shop.rig.queue),
    "state and kind": lambda shop: JobFilter(state="failed", kind=shop.rig.kind),
}


def lists(wanted: Callable[[Shop], JobFilter]) -> Act:
    """The first page, and the next, if not of a kind: that has jobs in many queues, and in each of them a page further
    on is reached past the jobs of all pages before it."""

    def act(shop: Shop, _: Rig) -> None:
        filters = wanted(shop)
        page = shop.rig.store.jobs(filters, None, 20)
        if page.next is not None and filters.kind is None:
            shop.rig.store.jobs(filters, page.next, 20)

    return act


def lists_runs(shop: Shop, _: Rig) -> None:
    wanted = [RunFilter(), RunFilter(job_id=shop.ended[-1]), RunFilter(state="failed"), RunFilter(kind=shop.rig.kind)]
    for one in wanted:
        shop.rig.store.runs(one, None, 20)
    assert shop.rig.store.log(shop.ended[-1], None, 20)


def looks_around(shop: Shop, _: Rig) -> None:
    store, now = shop.rig.store, shop.rig.now
    store.outstanding(100)
    store.failures(Micros(0), 100)
    store.count_failed(Micros(0), 100)
    store.stuck(now, Micros(now - 3_600_000_000), FIRST_ID, 100)
    store.durations(FIRST_ID, 100)
    store.duplicates(FIRST_ID, 100, 20)
    store.ran(FIRST_ID, 100)
    store.queue_holds(shop.rig.queue)


class Scene(NamedTuple):
    """What is done, and statements without which it has not shown what it is for."""

    act: Act
    runs: str = ""


SCENES = {
    "a turn": Scene(turn, "claim_head claim_ready insert_run delete_ready_of_run close_run_plainly aside_of_lane"),
    "other ends": Scene(other_ends, "update_ready"),
    "what was parked": Scene(claims_of_what_was_parked, "claim_parked"),
    "parking": Scene(parks, "claim_head update_ready"),
    "what is due": Scene(promotes, "due_jobs"),
    "a look": Scene(looks_for_work, "glance held_by_node overdue_jobs"),
    "awake": Scene(takes_what_is_awake, "claim_awake lock_keys read_keys"),
    "the next of a long line": Scene(next_in_lines("one"), "claim_line read_keys read_keys_in_line free_permit"),
    "the next of many lines": Scene(next_in_lines(*map(str, range(20))), "claim_line_heads read_keys"),
    "other limits": Scene(limits_are_changed, "lines_of_limit fronts_of_lines take_looks"),
    "a rate": Scene(a_rate_opens, "due_keys count_starts first_starts"),
    "limits shown": Scene(limits_are_shown, "lines_of_limit keys_in_use count_line_ahead"),
    "members of a flow": Scene(members_end, "count_in_tally read_flow"),
    "parents": Scene(parents_end, "waiting_edges settle_edge lock_these_waiters"),
    "many dependents": Scene(one_with_many_dependents_ends, "waiting_edges_from"),
    "a whole flow": Scene(a_flow_is_paused_cancelled_and_retried, "list_members lock_flow"),
    "an open flow": Scene(a_flow_grows_and_is_sealed, "seal_flow"),
    "flows shown": Scene(flows_are_shown, "list_flows list_flows_in_state"),
    "a death": Scene(a_node_dies, "running_of_node nodes_left_behind"),
    "people": Scene(people_decide, "lock_order neighbours_before delete_tags read_last_outcome"),
    "keys": Scene(keys_are_taken, "read_idempotency_key read_business_key"),
    "queues held": Scene(a_queue_is_held, "ensure_queue any_running"),
    "retention": Scene(what_is_old_goes, "list_ends these_ended old_flows flow_ends delete_flow"),
    **{f"jobs: {name}": Scene(lists(wanted)) for name, wanted in FILTERS.items()},
    "runs": Scene(lists_runs),
    "status": Scene(looks_around, "ask_outstanding ask_failures"),
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_no_statement_reads_many_rows_for_a_few(shop: Shop, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "SCANNED", 50)
    rig = Rig(shop.rig.url)
    with watched() as seen:
        scene.act(shop, rig)
    rig.close()

    assert [name for name in scene.runs.split() if name not in {ran.name for ran in seen}] == []
    assert [str(ran) for ran in seen if ran.is_too_much] == []

"""What a worker sleeps on: any commit wakes it, whoever makes it, and nothing that others leave behind harms it.

Where a test is about being woken, the sleeper would look for itself only after an hour: it must be the bell.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from perdure.store.sqlite import bell as bells
from perdure.store.sqlite.bell import SLOTS, SqliteBell, ring_sleepers
from perdure.store.sqlite.files import identity_of
from perdure.store.sqlite.gate import BOARD_SIZE, Gate, gate_for
from perdure.store.sqlite.wal import WalMeter
from tests.app.children import in_child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets without a file are Linux's own")

LONG_S = 60.0

# A second process that the test leads by the hand: each line is a command.
OTHER = """
import sys
from perdure import Perdure
app = Perdure(sys.argv[1])

@app.job
def work() -> None: ...

app.store.queues()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "enqueue":
        work.enqueue()
    elif line.strip() == "transact":
        with app.transaction() as tx:
            work.enqueue()
    elif line.strip() == "sleep":
        bell = app.store.bell()
        bell.wait(3600)
    print("done", flush=True)
"""


class Other:
    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "ready\n"

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def app(path: Path) -> Iterator[Perdure]:
    app = Perdure(path, durability="normal")
    app.store.upgrade()
    app.store.queues()
    yield app
    findings = examine(app.store)
    app.close()
    assert is_healthy(findings), findings


@pytest.fixture
def other(app: Perdure, path: Path) -> Iterator[Other]:
    other = Other(path)
    yield other
    other.kill()


@pytest.fixture
def gate(app: Perdure, path: Path) -> Gate:
    return gate_for(path)


Make = Callable[[], SqliteBell]


@pytest.fixture
def make(gate: Gate, path: Path) -> Iterator[Make]:
    made: list[SqliteBell] = []

    def one() -> SqliteBell:
        made.append(SqliteBell(WalMeter(path), gate, identity_of(path)))
        return made[-1]

    yield one
    for bell in made:
        bell.close()


@pytest.fixture
def bell(make: Make) -> SqliteBell:
    return make()


@pytest.fixture
def only_bells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bells, "LOOK_S", 3_600)


def asleep(gate: Gate) -> list[int]:
    return [slot for slot in SLOTS if gate.board[slot]]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def sleeping(pool: ThreadPoolExecutor, gate: Gate, *sleepers: SqliteBell) -> list[Future[bool]]:
    """Each in a thread of its own, asleep by now."""
    futures = [pool.submit(sleeper.wait, LONG_S) for sleeper in sleepers]
    until(lambda: len(asleep(gate)) == len(sleepers))
    return futures


# -- woken -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_bells")
@pytest.mark.parametrize("how", ["enqueue", "transact"])
def test_a_commit_of_another_process_wakes_at_once(
    how: str, bell: SqliteBell, gate: Gate, other: Other, pool: ThreadPoolExecutor
) -> None:
    [answer] = sleeping(pool, gate, bell)
    other.tell(how)

    assert answer.result()
    assert asleep(gate) == []


@pytest.mark.usefixtures("only_bells")
def test_a_commit_of_this_process_wakes_all_who_sleep(
    app: Perdure, make: Make, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    answers = sleeping(pool, gate, make(), make(), make())
    app.queues.pause("any")

    assert [answer.result() for answer in answers] == [True] * 3


@pytest.mark.usefixtures("only_bells")
def test_a_ring_from_inside_wakes(bell: SqliteBell, gate: Gate, pool: ThreadPoolExecutor) -> None:
    [answer] = sleeping(pool, gate, bell)
    bell.ring()

    assert answer.result()


def test_a_commit_that_rings_for_nobody_is_seen_all_the_same(
    bell: SqliteBell, gate: Gate, path: Path, pool: ThreadPoolExecutor
) -> None:
    [answer] = sleeping(pool, gate, bell)
    with closing(sqlite3.connect(path)) as foreign:
        foreign.execute("CREATE TABLE mine (x)")
        foreign.commit()

        assert answer.result()


@pytest.mark.usefixtures("only_bells")
def test_what_was_committed_before_the_sleep_is_noticed_once(app: Perdure, bell: SqliteBell) -> None:
    app.queues.pause("any")

    assert bell.wait(LONG_S)
    assert not bell.wait(0)


# -- not woken -------------------------------------------------------------------------------------------------------


def test_a_sleep_that_nobody_ends_says_that_nothing_happened(bell: SqliteBell, gate: Gate) -> None:
    assert not bell.wait(0)
    assert not bell.wait(0.12)
    assert asleep(gate) == []


def test_who_wants_to_be_rung_only_sleeps_through_what_others_write(app: Perdure, bell: SqliteBell) -> None:
    app.queues.pause("somewhere")

    assert not bell.wait(0.01, rung_only=True)
    assert bell.wait(0)  # it had not taken note of it


def test_who_wants_to_be_rung_only_is_woken_by_a_ring(bell: SqliteBell, gate: Gate, pool: ThreadPoolExecutor) -> None:
    sleep = pool.submit(bell.wait, 60, rung_only=True)
    bell.ring()

    assert sleep.result()


def test_rings_before_the_sleep_are_heard_once(bell: SqliteBell) -> None:
    for _ in range(100):
        bell.ring()

    assert bell.wait(0)
    assert not bell.wait(0)


def test_a_ring_or_a_commit_in_the_instant_after_the_time_was_up_is_not_lost(
    bell: SqliteBell, gate: Gate, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes between the last look and the return is in the answer."""

    def at_the_last_moment(act: Callable[[], None]) -> bool:
        clock = iter([0.0])

        def monotonic() -> float:
            now = next(clock, None)
            if now is None:
                act()
            return now if now is not None else 10.0

        with monkeypatch.context() as patched:
            patched.setattr(time, "monotonic", monotonic)
            return bell.wait(1)

    assert at_the_last_moment(bell.ring)
    assert at_the_last_moment(lambda: ring_sleepers(gate.board, identity_of(path)))
    assert not at_the_last_moment(lambda: None)


@pytest.mark.usefixtures("only_bells")
def test_a_commit_to_another_file_wakes_nobody(
    bell: SqliteBell, gate: Gate, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    [answer] = sleeping(pool, gate, bell)
    other = Perdure(tmp_path / "other.db", durability="normal")
    other.queues.pause("any")
    other.close()

    assert not answer.done()
    assert len(asleep(gate)) == 1
    bell.ring()
    assert answer.result()


# -- slots -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_bells")
def test_a_sleeper_that_was_killed_does_no_harm_and_its_slot_is_used_again(
    app: Perdure, gate: Gate, other: Other, make: Make, pool: ThreadPoolExecutor
) -> None:
    other.tell("sleep")
    until(lambda: asleep(gate))
    left = asleep(gate)
    other.kill()
    assert asleep(gate) == left

    app.queues.pause("any")
    assert asleep(gate) == []

    successor = make()
    [answer] = sleeping(pool, gate, successor)
    assert asleep(gate) == left
    app.queues.resume("any")
    assert answer.result()


@pytest.mark.usefixtures("only_bells")
def test_a_stopped_sleeper_keeps_nobody_from_committing(app: Perdure, gate: Gate, other: Other, path: Path) -> None:
    other.tell("sleep")
    until(lambda: asleep(gate))
    [slot] = asleep(gate)
    other.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, other.process.pid, os.WSTOPPED | os.WNOWAIT)
    for _ in range(600):  # more than a socket takes in
        gate.board[slot] = 1
        ring_sleepers(gate.board, identity_of(path))
    app.queues.pause("any")
    other.process.send_signal(signal.SIGCONT)
    assert other.process.stdout
    assert other.process.stdout.readline() == "done\n"


def test_who_finds_no_slot_looks_for_itself(app: Perdure, make: Make, gate: Gate) -> None:
    sleepers = [make() for _ in range(BOARD_SIZE + 3)]
    app.queues.pause("any")

    assert all(sleeper.wait(LONG_S) for sleeper in sleepers)
    assert not any(sleeper.wait(0) for sleeper in sleepers)
    assert asleep(gate) == []


@pytest.mark.usefixtures("only_bells")
def test_a_slot_is_free_again_when_its_bell_is_closed(make: Make, gate: Gate, pool: ThreadPoolExecutor) -> None:
    def slot_of(bell: SqliteBell) -> int:
        [answer] = sleeping(pool, gate, bell)
        [slot] = asleep(gate)
        bell.ring()
        assert answer.result()
        return slot

    first = make()
    slot = slot_of(first)
    first.close()

    assert slot_of(make()) == slot


# -- other users of the machine ---------------------------------------------------------------------------------------

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@contextmanager
def as_another_user(act: str, path: Path, *arguments: object) -> Generator[subprocess.Popen[str], None, None]:
    """A process of nobody's that has done `act`; it knows where the database is, as everybody may."""
    stranger = subprocess.Popen(
        [sys.executable, "-I", "-c", STRANGER, act, *map(str, identity_of(path) or ()), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert stranger.stdout
        assert stranger.stdout.readline() == "done\n"
        yield stranger
    finally:
        stranger.kill()
        stranger.communicate()


RINGER = """
import sys
from perdure import Perdure
from perdure.store.sqlite import bell
sys.kept = bell  # until the very end, as pytest does it: what goes before that is closed without a word
app = Perdure(sys.argv[1])

@app.job
def work() -> None: ...

work.enqueue()
assert bell._senders
app.close()
"""


@pytest.mark.usefixtures("only_bells")
def test_who_has_woken_somebody_leaves_no_socket_open_at_its_end(
    bell: SqliteBell, gate: Gate, path: Path, pool: ThreadPoolExecutor
) -> None:
    answers = sleeping(pool, gate, bell)
    command = [sys.executable, "-W", "error", "-c", RINGER, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [answer.result(LONG_S) for answer in answers] == [True]


STRANGER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
act, device, inode, *numbers = sys.argv[1], *map(int, sys.argv[2:])
kept = []
def name(slot):
    return f"\\0perdure-{device:x}-{inode:x}-{slot}"
if act == "squat":
    for slot in range(1, 63):
        kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        kept[-1].bind(name(slot))
else:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for _ in range(numbers[0]):
        try:
            sender.sendto(b"!", name(numbers[1]))
        except ConnectionRefusedError:
            break
print("done", flush=True)
sys.stdin.read()
"""


@as_root
@pytest.mark.usefixtures("only_bells")
def test_a_wake_from_another_user_wakes_nobody(
    app: Perdure, bell: SqliteBell, gate: Gate, path: Path, pool: ThreadPoolExecutor
) -> None:
    [answer] = sleeping(pool, gate, bell)
    [slot] = asleep(gate)
    with as_another_user("flood", path, 3, slot):
        until(lambda: bell._strangers == 3)
        assert not answer.done()
        app.queues.pause("any")

        assert answer.result()


@as_root
@pytest.mark.usefixtures("only_bells")
def test_a_bell_that_a_stranger_keeps_ringing_is_taken_down(
    bell: SqliteBell, gate: Gate, path: Path, pool: ThreadPoolExecutor
) -> None:
    """What is sent is taken in by a sleeper who is in no hurry; then the name is gone and the flood hits nobody."""
    [answer] = sleeping(pool, gate, bell)
    [slot] = asleep(gate)
    with as_another_user("flood", path, 1_000_000, slot):
        assert not answer.done()
    bell.ring()

    assert answer.result()
    assert bell._slot == 0


@as_root
def test_a_worker_whose_bell_was_taken_down_looks_for_itself(app: Perdure, bell: SqliteBell, path: Path) -> None:
    with as_another_user("flood", path, 1, bell._slot):
        bell._strangers = bells.STRANGERS
        assert not bell.wait(0)
    assert bell._slot == 0
    app.queues.pause("any")

    assert bell.wait(LONG_S)


@as_root
def test_who_finds_every_name_taken_by_another_user_looks_for_itself(
    app: Perdure, make: Make, gate: Gate, path: Path
) -> None:
    with as_another_user("squat", path):
        sleeper = make()
        app.queues.pause("any")

        assert sleeper.wait(LONG_S)
        assert asleep(gate) == []


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_closed_bell_is_silent(bell: SqliteBell) -> None:
    bell.close()
    bell.close()
    bell.ring()

    assert not bell.wait(LONG_S)


def test_a_closed_bell_touches_no_file_that_has_its_number_now(bell: SqliteBell, tmp_path: Path) -> None:
    held = open_descriptors()
    bell.close()
    freed = held - open_descriptors()
    files = [os.open(tmp_path / f"file-{number}", os.O_RDWR | os.O_CREAT) for number in range(len(freed) + 1)]
    try:
        assert freed & set(files)
        bell.ring()
        bell.close()
        bell.wait(0)
        assert [os.fstat(fd).st_size for fd in files] == [0] * len(files)
    finally:
        for fd in files:
            os.close(fd)


def open_descriptors() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}


def test_a_full_pipe_is_as_good_as_a_ring(bell: SqliteBell) -> None:
    with pytest.raises(BlockingIOError):
        while True:
            os.write(bell._writing, bytes(4096))
    bell.ring()

    assert bell.wait(LONG_S)


def test_rings_and_sleeps_of_many_threads_end(bell: SqliteBell, pool: ThreadPoolExecutor) -> None:
    over, before = threading.Event(), sys.getswitchinterval()

    def ring() -> None:
        while not over.is_set():
            bell.ring()

    sys.setswitchinterval(1e-5)
    try:
        ringing = [pool.submit(ring) for _ in range(2)]
        for _ in range(500):
            assert bell.wait(LONG_S)
        over.set()
        for done in ringing:
            done.result()
    finally:
        sys.setswitchinterval(before)
    bell.wait(0)
    assert not bell.wait(0)


# -- fork ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_bells")
def test_a_forked_child_takes_nothing_from_its_parent(
    app: Perdure, bell: SqliteBell, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    settled, settle = os.pipe()

    def child() -> str:
        os.read(settled, 1)
        bell.wait(0)
        bell.ring()
        heard = bell.wait(0), bell.wait(0)
        bell.close()
        return str(heard)

    def parent() -> None:
        bell.wait(0)  # a fork closes connections, which looks like a commit
        os.write(settle, b"!")

    assert in_child(child, parent) == "(True, False)"
    os.close(settled)
    os.close(settle)
    assert not bell.wait(0)
    [answer] = sleeping(pool, gate, bell)
    app.queues.pause("any")
    assert answer.result()


def test_a_forked_child_does_not_keep_the_slot_of_its_parent(make: Make) -> None:
    """Else a child that outlives a worker would keep the name that the next one wants."""
    first = make()
    slot = first._slot

    reading, writing = os.pipe()

    def child() -> str:
        os.read(reading, 1)
        return "over"

    def meanwhile() -> None:
        try:
            # the child has let go once it runs Python code; that cannot be seen from here but by the name itself
            first.close()
            until(lambda: _slot_of_a_new_one(make) == slot)
        finally:
            os.write(writing, b"!")

    assert in_child(child, meanwhile) == "over"
    os.close(reading)
    os.close(writing)


def _slot_of_a_new_one(make: Make) -> int:
    bell = make()
    slot = bell._slot
    bell.close()
    return slot

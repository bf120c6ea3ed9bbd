"""The turnstile between processes: in turn, one inside at a time, and never a reason to stand still."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest

from perdure.store.sqlite.files import identity
from perdure.store.sqlite.gate import _CALM, Board, Gate, _registry, gate_for

# A second process that the test leads by the hand: "enter SECONDS" or "leave" on each line, answered with the result.
OTHER = """
import sys
from perdure.store.sqlite.gate import gate_for
gate = gate_for(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    verb, *seconds = line.split()
    print(getattr(gate, verb)(*map(float, seconds)), flush=True)
"""

# Holds the gate for 1 ms at a time, back to back, until it is killed; each turn adds a byte to a file.
BUSY = """
import sys, time
from perdure.store.sqlite.gate import gate_for
gate = gate_for(sys.argv[1])
turns = open(sys.argv[1] + "-turns", "ab", buffering=0)
print("ready", flush=True)
while True:
    gate.enter(10)
    turns.write(b".")
    time.sleep(0.001)
    gate.leave()
"""


class Other:
    def __init__(self, script: str, database: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(database)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.answer() == "ready"

    def tell(self, command: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


Starter = Callable[..., Other]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    path.touch()
    return path


@pytest.fixture
def another(database: Path) -> Iterator[Starter]:
    """Starts other processes with a gate for the same database."""
    others: list[Other] = []

    def start(script: str = OTHER) -> Other:
        others.append(Other(script, database))
        return others[-1]

    yield start
    for other in others:
        other.end()


def test_a_free_gate_is_entered_at_once(database: Path) -> None:
    assert gate_for(database).enter(0)


def test_one_process_is_inside_at_a_time(database: Path, another: Starter) -> None:
    other = another()
    other.ask("enter 0")

    assert not gate_for(database).enter(0.01)


def test_after_leave_another_process_may_enter(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    gate.enter(0)
    gate.leave()

    assert another().ask("enter 0") == "True"


def test_one_who_waits_enters_when_the_other_leaves(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    other = another()
    gate.enter(0)
    other.tell("enter 30")
    _until_next_in_line(gate)

    gate.leave()

    assert other.answer() == "True"


def test_whoever_leaves_cannot_overtake_the_one_who_waits(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    other = another()
    gate.enter(0)
    other.tell("enter 30")
    _until_next_in_line(gate)

    gate.leave()

    assert not gate.enter(0)


def test_one_who_gave_up_stands_in_nobodys_way(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    inside, third = another(), another()
    inside.ask("enter 0")
    assert not gate.enter(0.01)
    gate.leave()

    inside.ask("leave")

    assert third.ask("enter 0") == "True"


def test_leaving_after_a_refusal_lets_nobody_in(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    inside, third = another(), another()
    inside.ask("enter 0")
    gate.enter(0)

    gate.leave()

    assert third.ask("enter 0") == "False"


def test_a_killed_process_leaves_the_gate(database: Path, another: Starter) -> None:
    other = another()
    other.ask("enter 0")

    other.end()

    assert gate_for(database).enter(0)


def test_a_stopped_process_holds_others_up_only_for_their_time_out(database: Path, another: Starter) -> None:
    other = another()
    other.ask("enter 0")
    other.process.send_signal(signal.SIGSTOP)

    started = time.monotonic()
    entered = gate_for(database).enter(0.05)
    waited = time.monotonic() - started

    assert not entered
    assert 0.05 <= waited < 5


def test_an_interrupted_waiter_holds_nothing(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    inside, third = another(), another()
    inside.ask("enter 0")

    with pytest.raises(KeyboardInterrupt):
        _enter_and_be_interrupted(gate)
    inside.ask("leave")

    assert third.ask("enter 0") == "True"


def test_a_new_gate_is_not_crowded(database: Path) -> None:
    assert gate_for(database).board[0] == 0


def test_whoever_waits_says_so_to_all(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    other = another()
    gate.enter(0)
    other.tell("enter 30")
    _until_next_in_line(gate)

    assert gate.board[0]


def test_a_process_that_nobody_stands_in_the_way_of_finds_the_gate_calm_again(database: Path) -> None:
    gate = gate_for(database)
    gate.board[0] = 1

    for _ in range(_CALM):
        gate.enter(0)
        gate.leave()

    assert not gate.board[0]


def test_a_single_wait_keeps_the_gate_crowded(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    other = another()
    for n in range(_CALM):
        if n == _CALM - 1:
            other.ask("enter 0")
        gate.enter(0)
        gate.leave()

    assert gate.board[0]


# Writes, sleeps and wakes as a program and its worker do, while somebody shortens the file beside the database.
SHORTENED = """
import os, sys
from perdure import Perdure
app = Perdure(sys.argv[1], durability="normal")

@app.job
def work() -> None: ...

bell = app.store.bell()
for _ in range(3):
    work.enqueue()
    bell.wait(0.001)
    os.truncate(sys.argv[1] + "-gate", 0)
    bell.wait(0.001)
    with app.transaction():
        work.enqueue()
bell.close()
print(sum(1 for _ in app.jobs()))
"""


def test_a_gate_file_that_somebody_shortens_kills_nobody(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHORTENED, str(tmp_path / "jobs.db")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "6\n", "")


def test_the_bytes_of_a_shortened_gate_file_are_zero_until_somebody_sets_them(database: Path) -> None:
    gate = gate_for(database)
    gate.board[0] = gate.board[7] = 1
    os.truncate(f"{database}-gate", 0)

    assert not any(gate.board.all())
    assert gate.board[7] == 0
    gate.board[7] = 1
    assert [slot for slot, byte in enumerate(gate.board.all()) if byte] == [7]


def test_a_board_on_a_full_disk_keeps_what_it_said(database: Path) -> None:
    descriptor = os.open("/dev/full", os.O_RDWR)
    try:
        board = Board(descriptor, identity(os.fstat(descriptor)))
        board[1] = 1
        assert board[1] == 0
    finally:
        os.close(descriptor)


def test_a_board_whose_descriptor_was_closed_writes_to_no_file_that_has_its_number_now(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "gate", os.O_RDWR | os.O_CREAT)
    board = Board(descriptor, identity(os.fstat(descriptor)))
    mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
    os.dup2(mine, descriptor)
    try:
        board[5] = 1
        assert (tmp_path / "mine").read_bytes() == b""
    finally:
        os.close(mine)
        os.close(descriptor)
    board[5] = 1
    assert not any(board.all())


def test_a_forked_child_does_not_take_itself_for_its_parent(database: Path) -> None:
    gate = gate_for(database)
    gate.enter(0)

    assert _in_a_forked_child(lambda: gate.inside) == "False"


def test_a_child_forked_while_another_thread_asked_for_a_gate_can_ask_for_one(database: Path) -> None:
    with _registry.lock:
        answer = _in_a_forked_child(lambda: gate_for(database).enter(0))

    assert answer == "True"


def test_a_forked_child_is_kept_out_while_its_parent_is_inside(database: Path) -> None:
    gate = gate_for(database)
    gate.enter(0)

    assert _in_a_forked_child(lambda: gate.enter(0)) == "False"


def test_a_forked_child_that_leaves_does_not_let_others_in(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    other = another()
    gate.enter(0)

    _in_a_forked_child(gate.leave)

    assert other.ask("enter 0") == "False"


def test_a_forked_child_can_enter_in_its_turn(database: Path) -> None:
    gate = gate_for(database)
    gate.enter(0)
    gate.leave()

    assert _in_a_forked_child(lambda: gate.enter(0)) == "True"


def test_every_path_to_a_database_leads_to_the_same_gate(database: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(database)

    assert gate_for(str(database)) is gate_for(link)


def test_asking_for_a_gate_again_does_not_open_it(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    gate.enter(0)

    gate_for(database)

    assert another().ask("enter 0") == "False"


def test_another_database_has_another_gate(tmp_path: Path) -> None:
    one = gate_for(tmp_path / "one.db")

    assert gate_for(tmp_path / "two.db") is not one


def test_a_database_made_anew_at_the_same_path_gets_a_new_gate(database: Path) -> None:
    before = gate_for(database)
    Path(f"{database}-gate").unlink()

    assert gate_for(database) is not before


def test_a_gate_that_nobody_keeps_costs_no_descriptor(database: Path) -> None:
    descriptor = gate_for(database)._fd

    assert descriptor is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_the_gate_file_is_private(database: Path) -> None:
    before = os.umask(0)
    try:
        _gate = gate_for(database)
    finally:
        os.umask(before)

    assert Path(f"{database}-gate").stat().st_mode & 0o777 == 0o600


def test_without_the_right_to_create_its_file_the_gate_is_passed_without_waiting(as_a_plain_user: Path) -> None:
    as_a_plain_user.chmod(0o555)
    gate = gate_for(as_a_plain_user / "jobs.db")

    assert not gate.enter(60)
    gate.leave()


def test_a_gate_the_kernel_grants_no_locks_on_is_passed_without_waiting(database: Path) -> None:
    descriptor = os.open(database, os.O_RDONLY)  # an exclusive record lock needs one that can write
    unlockable = Gate(descriptor, identity(os.fstat(descriptor)))

    assert not unlockable.enter(60)
    unlockable.leave()


def test_beside_two_busy_processes_a_third_one_waits_for_few_of_their_turns(database: Path, another: Starter) -> None:
    gate = gate_for(database)
    another(BUSY)
    another(BUSY)
    turns = Path(f"{database}-turns")

    waited_for: list[int] = []
    for _ in range(200):
        before = turns.stat().st_size
        assert gate.enter(10)
        waited_for.append(turns.stat().st_size - before)
        gate.leave()
        time.sleep(0.002)  # the load under test: a process that writes now and then

    assert median(waited_for) <= 4, waited_for  # of most: the system may stop us between the look and the gate


def _until_next_in_line(gate: Gate) -> None:
    """Wait until another process holds T: from inside, this process can take T whenever it is free."""
    assert gate._fd is not None
    while True:
        try:
            fcntl.lockf(gate._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except BlockingIOError:
            return
        fcntl.lockf(gate._fd, fcntl.LOCK_UN, 1, 0)


def _enter_and_be_interrupted(gate: Gate) -> None:
    alarm, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # the hang guard of the test run, lent to us
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        gate.enter(30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, alarm)


def _in_a_forked_child(act: Callable[[], object]) -> str:
    """What `act` returned in a child process, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # its own hang guard
        try:
            os.write(writing, str(act()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


@pytest.fixture
def as_a_plain_user() -> Iterator[Path]:
    """A folder of our own, and no more rights than any user has, also where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)

"""Who is gone: real processes, told apart by what the kernel says of them. Whatever is not certain is not gone."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.clock import Micros
from perdure.ids import NodeId
from perdure.store.rows import NodeRow, Process
from perdure.worker.liveness import ProcLiveness

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Says who it is, and waits for the end of its input.
CHILD = """
import sys
from perdure.worker.liveness import ProcLiveness
print(*ProcLiveness().own(), sep="\\n", flush=True)
sys.stdin.read()
"""


def node(process: Process) -> NodeRow:
    now = Micros(0)
    return NodeRow(NodeId(b"n" * 16), None, 0, now, now, None, None, *process)


@contextmanager
def child() -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """A process that lives until the test ends it, as it describes itself."""
    other = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert other.stdout is not None
    try:
        host, pid, start, boot, namespace = (other.stdout.readline().strip() for _ in range(5))
        yield other, Process(host, int(pid), start, boot, namespace)
    finally:
        other.kill()
        other.communicate()


def until_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def own() -> Process:
    return ProcLiveness().own()


def test_a_process_knows_itself(own: Process) -> None:
    assert (own.host, own.pid) == (socket.gethostname(), os.getpid())
    assert own.process_start is not None
    assert own.process_start.isdigit()
    assert own.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert own.pid_namespace == str(Path("/proc/self/ns/pid").readlink())
    assert own == ProcLiveness().own()


def test_this_process_is_not_gone(own: Process) -> None:
    assert not ProcLiveness().is_gone(node(own))


def test_another_process_is_gone_when_it_has_ended_and_not_before() -> None:
    with child() as (other, process):
        assert process.pid == other.pid
        assert not ProcLiveness().is_gone(node(process))

        other.kill()
        other.wait()
        assert ProcLiveness().is_gone(node(process))


def test_a_process_that_nobody_has_waited_for_is_gone_too() -> None:
    with child() as (other, process):
        other.kill()
        until_zombie(other.pid)

        assert ProcLiveness().is_gone(node(process))


def test_a_stopped_process_is_not_gone() -> None:
    with child() as (other, process):
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)

        assert not ProcLiveness().is_gone(node(process))


def test_another_process_under_the_same_number_does_not_keep_it_alive(own: Process) -> None:
    assert own.process_start is not None
    earlier = str(int(own.process_start) - 1)

    assert ProcLiveness().is_gone(node(own._replace(process_start=earlier)))


@pytest.mark.parametrize("host", ["same", "another"])
def test_a_process_of_another_boot_is_not_known_to_be_gone(own: Process, host: str) -> None:
    """A machine of the same name may be another machine."""
    other = own._replace(boot_id="another", pid=2**22 - 1, host=own.host if host == "same" else "another")

    assert not ProcLiveness().is_gone(node(other))


def test_a_process_of_another_pid_namespace_is_not_known_to_be_gone(own: Process) -> None:
    other = own._replace(pid_namespace="pid:[1]", pid=2**22 - 1)

    assert not ProcLiveness().is_gone(node(other))


@pytest.mark.parametrize("unknown", ["pid", "process_start", "boot_id", "pid_namespace"])
def test_what_a_node_did_not_tell_cannot_be_held_against_it(own: Process, unknown: str) -> None:
    other = own._replace(pid=2**22 - 1)
    assert ProcLiveness().is_gone(node(other))

    assert not ProcLiveness().is_gone(node(other._replace(**{unknown: None})))


def test_without_proc_nothing_is_certain(own: Process, tmp_path: Path) -> None:
    blind = ProcLiveness(tmp_path / "nothing")

    assert blind.own() == Process(socket.gethostname(), os.getpid(), None, None, None)
    assert not blind.is_gone(node(own))
    assert not blind.is_gone(node(own._replace(pid=2**22 - 1)))
    assert not ProcLiveness().is_gone(node(blind.own()))


# -- a /proc that shows something else -------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path: Path, own: Process) -> Path:
    """A copy of what is read of /proc, for this process alone."""
    folder = tmp_path / "proc"
    me = folder / str(os.getpid())
    (me / "ns").mkdir(parents=True)
    (folder / "sys/kernel/random").mkdir(parents=True)
    shutil.copy("/proc/sys/kernel/random/boot_id", folder / "sys/kernel/random/boot_id")
    (me / "stat").write_bytes(Path("/proc/self/stat").read_bytes())
    (me / "ns/pid").symlink_to(own.pid_namespace or "")
    (folder / "self").symlink_to(str(os.getpid()))
    return folder


def test_a_process_that_proc_hides_is_not_gone(proc: Path, own: Process) -> None:
    """With hidepid the processes of other users are not shown, though they live."""
    assert ProcLiveness(proc).own() == own
    with child() as (other, process):
        assert not ProcLiveness(proc).is_gone(node(process))

        other.kill()
        other.wait()
        assert ProcLiveness(proc).is_gone(node(process))


@pytest.fixture
def strangers() -> Iterator[int]:
    """The number of a process that this one may not send signals to, as long as the test lasts."""
    if os.geteuid() != 0:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        foreign = [pid for pid in pids if not may_signal(pid)]
        if not foreign:
            pytest.skip("every process here belongs to this user")
        yield foreign[0]
        return
    with child() as (other, _):
        os.setresuid(65534, 65534, 0)
        try:
            yield other.pid
        finally:
            os.setresuid(0, 0, 0)


def may_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
    return True


def test_a_hidden_process_of_another_user_is_not_gone(
    proc: Path, own: Process, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Whether the number is taken can be asked of any process; of those of others the kernel says no more than that."""
    proc.chmod(0o755)
    monkeypatch.chdir(proc)  # where others may look in from, whatever the folders above it allow
    pid: int = request.getfixturevalue("strangers")
    with pytest.raises(PermissionError):
        os.kill(pid, 0)

    here = ProcLiveness(Path())
    assert here.own() == own
    assert not here.is_gone(node(own._replace(pid=pid)))


def test_the_numbers_of_another_namespace_are_not_ours(proc: Path, own: Process) -> None:
    """`unshare --pid` without a /proc of its own: process 5 is somebody else's 5."""
    (proc / "self").unlink()
    (proc / "1").mkdir()
    (proc / "1/ns").symlink_to(proc / str(os.getpid()) / "ns")
    (proc / "self").symlink_to("1")

    assert ProcLiveness(proc).own() == own._replace(process_start=None)
    assert not ProcLiveness(proc).is_gone(node(own._replace(pid=2**22 - 1)))


def test_a_process_may_have_any_name() -> None:
    libc = ctypes.CDLL(None)
    before = Path("/proc/self/comm").read_bytes().strip()
    libc.prctl(15, b") Z 1 \xff(", 0, 0, 0)
    try:
        own = ProcLiveness().own()
        assert not ProcLiveness().is_gone(node(own))
    finally:
        libc.prctl(15, before, 0, 0, 0)
    assert own == ProcLiveness().own()

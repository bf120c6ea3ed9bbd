"""A file on a network filesystem is refused, unless the user takes the risk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Perdure

# A mount namespace of its own, in which /proc says that the folder lies on another kind of filesystem.
ELSEWHERE = """
set -e
mount -t tmpfs none /proc
mkdir /proc/self
echo "1 0 8:1 / / rw - ext4 /dev/sda1 rw" > /proc/self/mountinfo
echo "2 1 0:50 / $1 rw - $2 server:/export rw" >> /proc/self/mountinfo
shift 2
exec "$@"
"""

OPEN = """
import sys
from perdure import Perdure, PerdureError
try:
    Perdure(sys.argv[1], allow_network_filesystem=sys.argv[2] == "allow").queues.pause("mail")
except PerdureError as error:
    print(error)
else:
    print("opened")
"""

needs_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0
    if Path("/usr/bin/unshare").exists()
    else True,
    reason="needs mount namespaces (Linux, unshare)",
)


def run_on(kind: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the folder of this file lies on a filesystem of this kind."""
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", ELSEWHERE, "sh", str(path.parent), kind, sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def opened_on(kind: str, path: Path, allow: str = "refuse") -> str:
    """What an app says whose folder lies on a filesystem of this kind."""
    ended = run_on(kind, path, "-c", OPEN, str(path), allow)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@needs_namespaces
@pytest.mark.parametrize(("kind", "verdict", "status"), [("nfs4", "problem", 1), ("ext4", "ok", 0)])
def test_a_check_of_the_database_says_where_it_lies(
    kind: str, verdict: str, status: int, path: Path, app: Perdure
) -> None:
    app.store.upgrade()
    ended = run_on(kind, path, "-m", "perdure", "db", "check", "--json", "--url", str(path))

    facts = {fact["name"]: fact for fact in json.loads(ended.stdout)["facts"]}
    assert (facts["filesystem"]["value"], facts["filesystem"]["verdict"]) == (kind, verdict)
    assert ("local disk" in facts["filesystem"]["note"]) == (verdict == "problem")
    assert ended.returncode == status


@needs_namespaces
@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_file_on_a_network_filesystem_is_refused(kind: str, path: Path) -> None:
    said = opened_on(kind, path)
    assert said.endswith("[network_filesystem]")
    assert kind in said
    assert "allow_network_filesystem=True" in said
    assert not path.exists()


@needs_namespaces
def test_whoever_takes_the_risk_may(path: Path) -> None:
    assert opened_on("nfs4", path, "allow") == "opened"
    assert path.exists()


@needs_namespaces
@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay"])
def test_a_local_filesystem_is_taken(kind: str, path: Path) -> None:
    assert opened_on(kind, path) == "opened"

"""The database file before SQLite opens it: not on a network, private, and a clear word when it cannot be."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perdure.errors import DatabaseUnavailable
from perdure.store.sqlite.files import (
    _is_network,
    create_private,
    filesystem_of,
    refuse_network_filesystem,
)

# As a system with an initial ramdisk lists them: what was mounted early, and then moved, comes before the root.
MOUNTS = r"""
22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw
24 28 0:5 / /dev rw,nosuid shared:2 master:1 - devtmpfs devtmpfs rw,size=1k
25 24 0:22 / /dev/shm rw,nosuid shared:3 - tmpfs tmpfs rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 25 0:27 / /dev/shm rw - xfs /dev/sdb1 rw
40 28 0:40 / /srv rw - nfs4 server:/export rw,addr=10.0.0.1
41 40 8:2 / /srv/local rw - btrfs /dev/sdc rw
42 28 0:41 / /mnt/two\040words rw - cifs //nas/share rw
43 28 8:3 / /data/jobs rw - nfs server:/hidden rw
44 28 8:4 / /data rw - ext4 /dev/sdd rw
a line of another shape
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/jobs.db", "ext4"),
        ("/srv/jobs.db", "nfs4"),
        ("/srv", "nfs4"),
        ("/srvother/jobs.db", "ext4"),
        ("/srv/local/jobs.db", "btrfs"),
        ("/mnt/two words/jobs.db", "cifs"),
        ("/mnt/two/jobs.db", "ext4"),
        ("/dev/shm/jobs.db", "xfs"),
        ("/data/jobs/jobs.db", "ext4"),
    ],
    ids=[
        "on the root",
        "below a mount point",
        "the mount point itself",
        "a name that only begins like a mount point",
        "a mount in a mount",
        "a mount point with a space",
        "half of a mount point with a space",
        "two mounts on one point: the upper one",
        "a mount that a later one hides",
    ],
)
def test_the_filesystem_of_a_path_is_the_one_that_is_visible_there(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind


def test_a_mount_whose_parent_is_out_of_sight_counts() -> None:
    assert filesystem_of("/srv/jobs.db", "40 28 0:40 / /srv rw - nfs4 server:/export rw") == "nfs4"


def test_a_root_that_is_its_own_parent_counts() -> None:
    assert filesystem_of("/jobs.db", "1 1 0:2 / / rw - rootfs rootfs rw") == "rootfs"


def test_a_path_on_no_listed_mount_has_no_known_filesystem() -> None:
    assert filesystem_of("/home/me/jobs.db", "40 28 0:40 / /srv rw - nfs4 server:/export rw") is None


def test_the_kernels_own_list_is_understood(tmp_path: Path) -> None:
    mountinfo = Path("/proc/self/mountinfo")
    if not mountinfo.exists():
        pytest.skip("this system does not list its mounts")

    assert filesystem_of("/proc/self", mountinfo.read_text()) == "proc"
    assert filesystem_of(str(tmp_path.resolve()), mountinfo.read_text())


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "fuse.sshfs", "fuse.s3fs"])
def test_filesystems_over_a_network_are_known(kind: str) -> None:
    assert _is_network(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk", "fuse.mergerfs"]
)
def test_filesystems_of_this_machine_are_not_taken_for_a_network(kind: str) -> None:
    assert not _is_network(kind)


def test_a_local_path_is_accepted_before_its_file_exists(tmp_path: Path) -> None:
    refuse_network_filesystem(tmp_path / "jobs.db", allow=False)


def test_a_network_filesystem_is_refused_with_its_name_and_the_ways_out(tmp_path: Path) -> None:
    database = tmp_path.resolve() / "jobs.db"

    with pytest.raises(DatabaseUnavailable) as refused:
        refuse_network_filesystem(database, allow=False, mounts=_everything_on_nfs(tmp_path))

    assert refused.value.code == "network_filesystem"
    for part in (str(database), "(nfs4)", "local disk", "server database", "allow_network_filesystem=True"):
        assert part in refused.value.message


def test_a_link_into_a_network_filesystem_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to("/srv/jobs.db")
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)

    with pytest.raises(DatabaseUnavailable):
        refuse_network_filesystem(link, allow=False, mounts=mounts)


def test_a_network_filesystem_can_be_allowed(tmp_path: Path) -> None:
    refuse_network_filesystem(tmp_path / "jobs.db", allow=True, mounts=_everything_on_nfs(tmp_path))


def test_where_the_mounts_are_not_listed_nothing_is_refused(tmp_path: Path) -> None:
    refuse_network_filesystem(tmp_path / "jobs.db", allow=False, mounts=tmp_path / "not there")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_a_new_database_file_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create_private(tmp_path / "jobs.db")
    finally:
        os.umask(before)

    assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.damaged
def test_an_existing_file_keeps_its_mode_and_content(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_text("jobs")
    path.chmod(0o640)

    create_private(path)

    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_text() == "jobs"


def test_a_link_to_a_file_that_is_not_there_yet_creates_that_file_private(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "jobs.db")

    create_private(tmp_path / "link.db")

    assert (tmp_path / "jobs.db").stat().st_mode & 0o777 == 0o600


def test_many_threads_may_create_the_same_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create_private, [tmp_path / "jobs.db"] * 50))

    assert (tmp_path / "jobs.db").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    error = _refusal(tmp_path / "a" / "b" / "jobs.db")

    assert error.code == "database_path"
    assert f"Create the folder {str(tmp_path / 'a')!r}" in error.message


def test_a_folder_is_not_a_database(tmp_path: Path) -> None:
    error = _refusal(tmp_path)

    assert error.code == "database_path"
    assert "is a folder" in error.message


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    error = _refusal(tmp_path / "file" / "jobs.db")

    assert error.code == "database_path"
    assert "is a file, not a folder" in error.message


def test_a_path_no_system_can_have_is_refused() -> None:
    error = _refusal("jobs\0.db")

    assert error.code == "database_path"
    assert "'jobs\\x00.db'" in error.message


def test_a_name_too_long_for_the_system_is_refused(tmp_path: Path) -> None:
    error = _refusal(tmp_path / ("x" * 300))

    assert error.code == "database_path"
    assert "name" in error.message


def test_without_the_right_to_write_the_folder_is_named(as_a_plain_user: Path) -> None:
    as_a_plain_user.chmod(0o555)

    error = _refusal(as_a_plain_user / "jobs.db")

    assert error.code == "database_permission"
    assert f"Let this user write to the folder {str(as_a_plain_user)!r}" in error.message


def _everything_on_nfs(folder: Path) -> Path:
    mounts = folder / "mounts"
    mounts.write_text("28 1 0:40 / / rw - nfs4 server:/ rw\n")
    return mounts


def _refusal(path: str | Path) -> DatabaseUnavailable:
    with pytest.raises(DatabaseUnavailable) as refused:
        create_private(path)
    return refused.value


@pytest.fixture
def as_a_plain_user() -> Iterator[Path]:
    """A folder of our own, and no more rights than any user has, also where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(folder).resolve()
        finally:
            if root:
                os.seteuid(0)

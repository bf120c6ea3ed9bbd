"""Perdure with the oldest versions of its dependencies that pyproject.toml allows: installed, and used.

requirements/lowest.lock holds them. The virtual environment is made for this suite and thrown away after it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "lowest.lock"
DECLARED = re.compile(r"(?P<name>[\w-]+)(?P<extra>\[\w+\])?>=(?P<floor>[\d.]+)(,<[\d.]+)?")
SUITE_S = 120

Program = Callable[..., subprocess.CompletedProcess[str]]
"""Runs Python in that environment, in a folder of the test's own."""


def locked() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in LOCK.read_text().splitlines())
    pairs = (line.replace("[binary]", "").split("==") for line in lines if line)
    return {name.lower(): version for name, version in pairs}


def declared() -> dict[str, str]:
    """Every dependency of the package and of its extras, with the oldest version that is allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    found: dict[str, str] = {}
    for line in wanted:
        part = DECLARED.fullmatch(line)
        assert part is not None, f"{line} names no oldest version"
        found[part["name"].lower()] = part["floor"]
    return found


def same(one: str, other: str) -> bool:
    """Whether two versions are one: 13 is 13.0.0."""
    return one == other or re.sub(r"(\.0)+$", "", one) == re.sub(r"(\.0)+$", "", other)


def test_the_lock_holds_the_oldest_versions_that_are_declared() -> None:
    versions = locked()
    for name, floor in declared().items():
        assert same(versions[name], floor), f"{name}>={floor} is declared, {versions[name]} is tested"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the oldest versions and nothing else."""
    folder = tmp_path_factory.mktemp("lowest")
    venv.create(folder, with_pip=False, symlinks=True)
    made = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(made), "install", "-qq"]
    subprocess.run([*pip, "--no-deps", "--requirement", str(LOCK)], check=True, timeout=SUITE_S)
    return made


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Program:
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "COLUMNS": "100", "HOME": str(tmp_path)}

    def run(*arguments: str, within_s: float = SUITE_S) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(python), *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_the_versions_fit_each_other(python: Path) -> None:
    check = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=SUITE_S)
    assert done.returncode == 0, done.stdout


COMMAND_LINES = """
import sys
from perdure.cli.main import main

for words in sys.argv[1:]:
    print("==", words)
    try:
        main(words.split())
    except SystemExit as left:
        if left.code:
            raise
"""


def printed(run: Program, *lines: str) -> dict[str, str]:
    """What each of these command lines prints, all in one process."""
    parts = re.split(r"^== (.*)\n", run("-c", COMMAND_LINES, *lines).stdout, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_command_has_its_help(run: Program) -> None:
    names = [entry.name for entries in COMMANDS.values() for entry in entries]
    lines = ["--help", *(f"{name} --help" for name in names)]
    told = printed(run, *lines)
    assert list(told) == lines
    assert all("Usage:" in text for text in told.values())


SHOP = """
from perdure import JobContext, Perdure, Secret
from typing import Annotated

app = Perdure("shop.db")


@app.job(retry=1)
def send(ctx: JobContext, to: str, token: Annotated[str, Secret] = "", copies: int = 1) -> str:
    ctx.log.info("sending with %s", token)
    if to == "nobody":
        raise ValueError(to)
    return to * copies
"""


def test_jobs_are_enqueued_run_and_looked_at_from_the_command_line(run: Program, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    for to in ("ann", "nobody"):
        run("-m", "perdure", "enqueue", "send", f"to={to}", "token=hunter2", "copies=2", "--app", "shop:app")
    worker = run("-m", "perdure", "worker", "shop:app", "--until-idle")
    assert "completed send" in worker.stderr
    assert "hunter2" not in worker.stderr
    reading = ("jobs --json", "jobs", "runs", "status", "nodes", "queues", "doctor", "db check")
    lines = [f"{line} --url shop.db" for line in reading] + ["kinds --app shop:app", "check shop:app"]
    told = printed(run, *lines)
    assert list(told) == lines
    assert all(told.values())
    assert "annann" in told[lines[0]]


LIBRARY = """
import asyncio
from datetime import date
from pydantic import BaseModel, SecretStr
from perdure import Perdure, Retry


class Order(BaseModel):
    number: int
    due: date


app = Perdure("jobs.db")


@app.job(retry=Retry(2, backoff="none"))
def pack(order: Order, password: SecretStr) -> Order:
    return order


@app.job
async def double(n: int) -> int:
    return 2 * n


order = Order(number=7, due=date(2026, 1, 31))
with app.worker().running():
    assert pack.wait(pack.enqueue(order, SecretStr("hunter2")), timeout=60) == order
    assert double.wait(double.enqueue(21), timeout=60) == 42
assert asyncio.run(app.aio.enqueue("double", {"n": 1})).state == "queued"

with app.testing() as t:
    double.enqueue(4)
    assert [job.result for job in t.drain()] == [8]
import cronsim, psycopg, pymysql, zoneinfo
assert zoneinfo.ZoneInfo("Europe/Berlin")
from perdure.store.postgres.session import PostgresServer
print("done")
"""


def test_the_library_works(run: Program) -> None:
    assert run("-c", LIBRARY).stdout == "done\n"


EVERY_DAY = ("tags", "logs", "locks")  # of every sort of statement some; the rest says nothing more about versions


def test_the_store_keeps_its_contract(run: Program) -> None:
    run("-m", "perdure.testing.contract", "sqlite:///contract.db", "--only", *EVERY_DAY)


@pytest.mark.full
def test_the_store_keeps_the_whole_contract(run: Program) -> None:
    run("-m", "perdure.testing.contract", "sqlite:///contract.db", within_s=1_500)

"""Both type checkers accept right use, and refuse each line of wrong use, of the package as it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIGHT = Path(__file__).with_name("right.py")

# Text, not a file: `make check` must not see it.
PREAMBLE = """\
from perdure import Job, JobContext, Perdure, Retry, Unique

app = Perdure("jobs.db")


@app.job
def send(to: str, subject: str = "hi") -> str:
    return to + subject


@app.job(queue="mail")
async def fetch(url: str, *, tries: int = 1) -> int:
    return len(url) * tries


@app.job
def count(ctx: JobContext, words: list[str]) -> dict[str, int]:
    return {word: ctx.attempt for word in words}


async def wrong(job: Job, ctx: JobContext) -> None:
"""

WRONG = {
    "an argument of another type": "send.enqueue(5)",
    "a missing argument": "send.enqueue()",
    "an unknown argument": 'send.enqueue("a", colour="red")',
    "an argument too many": 'send.enqueue("a", "b", "c")',
    "an argument of another type to a coroutine function": 'fetch.enqueue("u", tries="two")',
    "a keyword given by position": 'fetch.enqueue("u", 2)',
    "the context as an argument": 'count.enqueue(ctx, ["a"])',
    "an argument of another type behind the context": "count.enqueue([5])",
    "a plain call with another type": "send(5)",
    "a plain call without the context": 'count(["a"])',
    "an unknown option": "send.options(prio=1)",
    "an option of another type": 'send.options(priority="high")',
    "an unknown choice": 'send.options(conflict="ignore")',
    "an option of another type further on": "send.options(delay=1).options(queue=5)",
    "an argument of another type behind options": "send.options(delay=1).enqueue(5)",
    "a draft with another type": "send.new(5)",
    "a draft behind options with another type": "count.options(delay=1).new([5])",
    "an awaited argument of another type": "await send.aenqueue(5)",
    "an awaited argument of another type behind options": "await fetch.options(delay=1).aenqueue(5)",
    "a result of another type": "a: int = send.wait(job)",
    "a coroutine function's result of another type": "b: str = fetch.wait(job)",
    "an awaited result of another type": "c: str = await fetch.await_(job)",
    "a result of another type behind the context": "d: dict[str, str] = count.wait(job)",
    "an unknown option by name": 'app.enqueue("send", {"to": "a"}, prio=1)',
    "drafts that are none": 'app.enqueue_many([{"to": "a"}])',
    "a replacement that is no draft": 'app.supersede(job, {"to": "a"})',
    "a place that is none": 'app.move(job, to="middle")',
    "a job that is none": "app.cancel(5)",
    "a result as an argument of another type": "fetch.new(app.workflow('w').add(fetch.new('u')).result)",
    "an unknown end": "send.options(after=job, on='sucess')",
    "something else to wait for": "send.options(after=5)",
    "an unknown mode": "app.group([send.new('a')], mode='serial')",
    "an unknown policy": "app.workflow('w', on_failure='ignore')",
    "a member that is no draft": "app.workflow('w').add(send)",
    "an unknown count of a flow": "app.workflow('w').summary.sucess_rate",
    "a flow that is taken for a job": "f: Job = app.cancel(app.chain(send.new('a')))",
    "a change to a frozen job": 'job.queue = "other"',
    "an unknown option of a kind": "app.job(prio=1)",
    "an option of another type for a kind": "app.job(queue=5)",
    "a result that may be missing": "e: Job = app.get(job)",
    "an unknown setting": 'Perdure("jobs.db", lease=60)',
    "a setting of another type": 'Perdure("jobs.db", lease_s="60")',
    "a setting that is no list": 'Perdure("jobs.db", imports=5)',
    "a misspelt durability": 'Perdure("jobs.db", durability="ful")',
    "a misspelt isolation": 'app.job(isolation="proces")',
    "a misspelt conflict": 'app.job(conflict="retur")',
    "a misspelt until": 'Unique(until="forever")',
    "a misspelt backoff": 'Retry(backoff="exponental")',
    "an unknown option of a worker": "app.worker(grace=5)",
    "an option of a worker of another type": 'app.worker(poll_s="1")',
    "a misspelt order": 'app.worker(order="round-robin")',
    "an unknown option of a schedule": 'app.schedule("@daily", timezone="UTC")',
    "a misspelt overlap": 'app.schedule("@daily", overlap="skp")',
    "a misspelt catch_up": 'app.schedules.put("daily", "@daily", kind=send, catch_up="last")',
    "an unknown filter": 'app.jobs(status="queued")',
    "a filter of another type": "app.jobs(queue=5)",
    "a misspelt state": 'app.jobs(state="complete")',
    "a misspelt state in a list": 'app.jobs(state=["failed", "park"])',
    "an awaited listing with a misspelt state": 'app.aio.jobs(state="complete")',
    "a state that only runs have": 'app.jobs(state="timed_out")',
    "a state that no run has": 'app.runs(state="queued")',
    "a filter that runs do not have": 'app.runs(queue="mail")',
    "an awaited listing of runs with a filter that they do not have": 'app.aio.runs(queue="mail")',
    "a misspelt state for a verb": 'app.cancel_all(state="queud")',
    "a filter that is None for a verb": "app.retry_all(kind=None)",
    "an awaited verb with a misspelt state": 'await app.aio.pause_all(state="queud")',
    "an awaited verb with an unknown filter": 'await app.aio.retry_all(status="failed")',
    "a purge without a state": "app.purge()",
    "a purge of jobs that have not ended": 'app.purge(state="queued")',
    "an archive of jobs that have not ended": 'app.archive(state=["failed", "running"])',
    "a number where data is removed": 'app.purge(state="failed", older_than=30)',
    "an unknown change": "app.edit(job, priority=5)",
    "a change of another type": "app.edit(job, queue=5)",
    "an awaited change of another type": "await app.aio.edit(job, queue=5)",
    "a child with an argument of another type": "ctx.enqueue(send, 5)",
    "a child with an unknown argument": 'ctx.enqueue(send, "a", colour="red")',
    "a child behind options without its argument": "ctx.enqueue(send.options(delay=1))",
    "a child with the context as an argument": 'ctx.enqueue(count, ctx, ["a"])',
    "a draft as a child, with arguments": 'ctx.enqueue(send.new("a"), "b")',
    "a child by its name": 'ctx.enqueue("send", "a")',
    "a read result of another type": "f: int = send.result(job)",
    "a read result by its id": "send.result(job.id)",
    "a time span as text": 'app.wait(job, "5s")',
}

SAMPLE = PREAMBLE + "".join(f"    {line}\n" for line in WRONG.values())
LINE_OF = {name: number for number, name in enumerate(WRONG, start=PREAMBLE.count("\n") + 1)}

Complaints = dict[Path, dict[int, str]]
"""What a checker says: file → line → message."""


class Place(NamedTuple):
    """An environment with nothing but the wheel and what it needs, and the two programs to check."""

    python: Path
    right: Path
    wrong: Path

    @property
    def folder(self) -> Path:
        return self.right.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("typing")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder / "env")}))
    [wheel] = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    found = Place(python, folder / "right.py", folder / "wrong.py")
    found.right.write_text(RIGHT.read_text("utf-8"), "utf-8")
    found.wrong.write_text(SAMPLE)
    return found


@pytest.fixture(scope="module")
def mypy(place: Place) -> Complaints:
    command = [sys.executable, "-m", "mypy", "--python-executable", str(place.python), "--strict", "--output", "json"]
    ended = subprocess.run(
        [*command, place.right.name, place.wrong.name], cwd=place.folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr
    found: Complaints = {}
    for said in map(json.loads, ended.stdout.splitlines()):
        if said["severity"] == "error":
            found.setdefault(place.folder / said["file"], {}).setdefault(said["line"], said["message"])
    return found


@pytest.fixture(scope="module")
def pyright(place: Place) -> Complaints:
    settings: dict[str, Any] = {
        "include": [place.right.name, place.wrong.name],
        "typeCheckingMode": "strict",
        "enableBasedFeatures": False,
        "pythonVersion": "3.11",
    }
    (place.folder / "pyrightconfig.json").write_text(json.dumps(settings))
    checker = Path(sys.executable).with_name("basedpyright")
    ended = subprocess.run(
        [checker, "--project", place.folder, "--pythonpath", place.python, "--outputjson"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found: Complaints = {}
    for said in json.loads(ended.stdout)["generalDiagnostics"]:
        if said["severity"] == "error":
            line = said["range"]["start"]["line"] + 1
            found.setdefault(Path(said["file"]), {}).setdefault(line, said["message"])
    return found


@pytest.fixture(params=["mypy", "pyright"])
def complaints(request: pytest.FixtureRequest) -> Complaints:
    found: Complaints = request.getfixturevalue(request.param)
    return found


def test_right_use_is_accepted(complaints: Complaints, place: Place) -> None:
    assert complaints.get(place.right, {}) == {}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_refused(name: str, complaints: Complaints, place: Place) -> None:
    assert LINE_OF[name] in complaints[place.wrong], f"accepted: {WRONG[name]}"


def test_nothing_else_is_refused(complaints: Complaints, place: Place) -> None:
    said = complaints[place.wrong]
    assert [said[line] for line in said.keys() - LINE_OF.values()] == []
    assert complaints.keys() <= {place.wrong, place.right}

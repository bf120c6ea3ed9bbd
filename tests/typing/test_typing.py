"""Both type checkers accept right use, and refuse each line of wrong use."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIGHT = Path(__file__).with_name("right.py")

# Text, not a file: `make check` must not see it.
PREAMBLE = """\
from perdure import Job, JobContext, Perdure

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
    "a change to a frozen job": 'job.queue = "other"',
    "an unknown option of a kind": "app.job(prio=1)",
    "an option of another type for a kind": "app.job(queue=5)",
    "a result that may be missing": "e: Job = app.get(job)",
}

SAMPLE = PREAMBLE + "".join(f"    {line}\n" for line in WRONG.values())
LINE_OF = {name: number for number, name in enumerate(WRONG, start=PREAMBLE.count("\n") + 1)}

Complaints = dict[Path, dict[int, str]]
"""What a checker says: file → line → message."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("typing") / "wrong.py"
    path.write_text(SAMPLE)
    return path


@pytest.fixture(scope="module")
def mypy(sample: Path) -> Complaints:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--output", "json"]
    cache = ["--cache-dir", str(sample.parent / "cache")]
    ended = subprocess.run(
        [*command, *cache, str(sample), str(RIGHT)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stderr
    found: Complaints = {}
    for said in map(json.loads, ended.stdout.splitlines()):
        if said["severity"] == "error":
            file = (ROOT / said["file"]).resolve()
            found.setdefault(file, {}).setdefault(said["line"], said["message"])
    return found


@pytest.fixture(scope="module")
def pyright(sample: Path) -> Complaints:
    config = sample.with_name("pyrightconfig.json")
    settings: dict[str, Any] = {
        "include": [str(sample), str(RIGHT)],
        "extraPaths": [str(ROOT / "src"), sysconfig.get_path("purelib")],
        "typeCheckingMode": "strict",
        "enableBasedFeatures": False,
        "pythonVersion": "3.11",
    }
    config.write_text(json.dumps(settings))
    checker = Path(sys.executable).with_name("basedpyright")
    ended = subprocess.run(
        [checker, "--project", str(config), "--outputjson"], capture_output=True, text=True, check=False
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    found: Complaints = {}
    for said in json.loads(ended.stdout)["generalDiagnostics"]:
        if said["severity"] == "error":
            line = said["range"]["start"]["line"] + 1
            found.setdefault(Path(said["file"]).resolve(), {}).setdefault(line, said["message"])
    return found


@pytest.fixture(params=["mypy", "pyright"])
def complaints(request: pytest.FixtureRequest) -> Complaints:
    found: Complaints = request.getfixturevalue(request.param)
    return found


def test_right_use_is_accepted(complaints: Complaints) -> None:
    assert complaints.get(RIGHT, {}) == {}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_is_refused(name: str, complaints: Complaints, sample: Path) -> None:
    assert LINE_OF[name] in complaints[sample.resolve()], f"accepted: {WRONG[name]}"


def test_nothing_else_is_refused(complaints: Complaints, sample: Path) -> None:
    unexpected = complaints[sample.resolve()].keys() - LINE_OF.values()
    assert [complaints[sample.resolve()][line] for line in unexpected] == []


def test_the_package_itself_gives_no_complaint(complaints: Complaints, sample: Path) -> None:
    assert complaints.keys() <= {sample.resolve(), RIGHT}

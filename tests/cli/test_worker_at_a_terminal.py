"""`perdure worker` at a terminal: live lines, colours, and `--reload`."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from perdure import Perdure as App
from perdure.cli.live import Below, lines_of
from perdure.cli.reload import SourceWatch
from tests.cli.terminal import process, session

CRAWLER = """
import logging
from pathlib import Path
from perdure import JobContext, Perdure

app = Perdure("jobs.db", durability="normal")

@app.job
def crawl(ctx: JobContext) -> None:
    ctx.progress(3, 12, "the third page")
    Path("go on").read_text()
    print("printed by the handler")
    logging.getLogger("shop").warning("logged by the handler")
"""


def enqueue(folder: Path, *kinds: str) -> None:
    app = App(folder / "jobs.db", durability="normal")
    for kind in kinds:
        app.job(name=kind)(lambda: None)
        app.enqueue(kind, {})
    app.close()


def test_a_running_job_has_a_line_below_all_that_is_logged_and_printed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CRAWLER)
    os.mkfifo(tmp_path / "go on")
    enqueue(tmp_path, "crawl")

    with session("worker", "shop", "--until-idle", cwd=tmp_path) as terminal:
        terminal.see("3 of 12 (25 %), the third page")
        (tmp_path / "go on").write_text("now")
        assert terminal.end() == 0
    *_, last = terminal.shown.split("the third page\r\n")
    assert "\x1b[1A\x1b[J" in terminal.shown, "it is erased before something is written"
    assert re.search(r"^\S+ \S+ INFO    completed crawl", last, re.MULTILINE)
    assert "\r\nprinted by the handler\r\n" in re.sub(r"\x1b\[[0-9]*[AJ]", "", terminal.shown)
    assert re.search(r"WARNING \[crawl \w{8}\] shop: logged by the handler\r\n", terminal.shown)


PRINTING = """
import sys
from pathlib import Path
from perdure import JobContext, Perdure

app = Perdure("jobs.db", durability="normal")

@app.job(isolation="process")
def crawl(ctx: JobContext) -> None:
    ctx.progress(3, 12, "the third page")
    Path("go on").read_text()
    print("printed", "by the child")
    print("10 %", end="\\r", file=sys.stderr)
    print("told by the child", file=sys.stderr)
    Path("go on").read_text()
"""


def test_what_a_child_process_prints_appears_above_the_lines_at_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PRINTING)
    os.mkfifo(tmp_path / "go on")
    enqueue(tmp_path, "crawl")

    with session("worker", "shop", "--until-idle", cwd=tmp_path) as terminal:
        terminal.see("3 of 12 (25 %), the third page")
        (tmp_path / "go on").write_text("now")
        terminal.see("told by the child")
        (tmp_path / "go on").write_text("now")
        assert terminal.end() == 0
    for said in ("printed by the child", "told by the child"):
        assert re.search(rf"\x1b\[1A\x1b\[J{said}\r\n  crawl .*the third page", terminal.shown), terminal.shown
    assert "10 %" not in terminal.shown


def test_without_a_terminal_there_is_no_such_line_and_no_colour(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(CRAWLER)
    (tmp_path / "go on").touch()
    enqueue(tmp_path, "crawl")

    ran = process("worker", "shop", "--until-idle", cwd=tmp_path)
    assert "the third page" not in ran.out + ran.err
    assert "\x1b" not in ran.out + ran.err
    assert "printed by the handler" in ran.out


def running(name: str, seconds: float, metrics: str | None = None, attempt: int = 1) -> Any:
    """As much of a context as is looked at."""
    return SimpleNamespace(name=name, started_ns=-int(seconds * 1e9), metrics=metrics, attempt=attempt)


def test_the_longest_come_first_short_ones_have_no_line_and_many_are_counted() -> None:
    some = [running("b 2", 5), running("a 1", 90, attempt=2), running("c 3", 0.5), running("d\n4", 2)]
    assert lines_of(some, 0) == ["  a 1 #2  90 s", "  b 2  5 s", "  d\n4  2 s"]
    assert lines_of([running("e 5", 0, '{"progress": {"done": 2}}')], 0) == ["  e 5  0 s  2"]
    assert lines_of([running(f"f {number}", 9) for number in range(20)], 0)[-1] == "  and 13 more"


def test_a_line_that_is_printed_in_pieces_stays_one() -> None:
    out = io.StringIO()
    below = Below(out, lambda: ["  at work"])
    with below.refreshed():
        for piece in ("one ", "line\nand ", "another"):
            below.write(piece)
    assert out.getvalue() == "one line\n  at work\n\x1b[1A\x1b[Jand another"


# -- --reload ----------------------------------------------------------------------------------------------------------

CHANGING = """
from perdure import Perdure

app = Perdure("jobs.db", durability="normal")

@app.job
def tell() -> str:
    print("this is {version}", flush=True)
"""


def test_a_change_of_the_source_starts_the_worker_anew_and_broken_code_is_waited_out(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.write_text(CHANGING.format(version="version 1"))
    enqueue(tmp_path, "tell")

    with session("worker", "shop", "--reload", cwd=tmp_path) as terminal:
        terminal.see("this is version 1")
        source.write_text("this is no Python")
        terminal.see("shop.py has changed")
        terminal.see("waiting for a change")
        enqueue(tmp_path, "tell")
        source.write_text(CHANGING.format(version="the second version"))
        terminal.see("this is the second version")
        terminal.press("\x03")
        assert terminal.end() == 0
    here = App(tmp_path / "jobs.db")
    assert [node.stop_reason for node in here.store.nodes(10)] == ["clean_shutdown", "clean_shutdown"]
    here.close()


def test_a_broken_module_of_imports_is_waited_out_too(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text('from perdure import Perdure\n\napp = Perdure("jobs.db", imports=["kinds"])\n')
    kinds = tmp_path / "kinds.py"
    kinds.write_text("this is no Python")

    with session("worker", "shop", "--reload", cwd=tmp_path) as terminal:
        assert "[imports_failed]" in terminal.see("waiting for a change")
        kinds.write_text("from shop import app\n\n\n@app.job\ndef tell() -> None: ...\n")
        terminal.see("kinds     tell")
        terminal.press("\x03")
        assert terminal.end() == 0


def files(folder: Path) -> Iterator[Path]:
    for name in ("a.py", "b/c.py", ".hidden/d.py", "node_modules/e.py", "env/lib/f.py", "notes.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
        yield path
    (folder / "env" / "pyvenv.cfg").touch()


def test_sources_are_watched_and_nothing_else(tmp_path: Path) -> None:
    source, deeper, *others = files(tmp_path)
    watch = SourceWatch(tmp_path)
    assert watch.changed() is None

    for path in others:
        path.write_text("changed")
    assert watch.changed() is None
    deeper.write_text("changed")
    assert (watch.changed(), watch.changed()) == ("b/c.py", None)
    source.unlink()
    assert watch.changed() == "a.py"
    source.write_text("new")
    stopped = threading.Event()
    watch.stop_on_change(stopped.set)
    assert stopped.wait(60)
    assert watch.has_changed

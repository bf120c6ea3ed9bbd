"""The program as a whole: help, options before or after the command, errors, pipes, interrupts and completion."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.cli.commands import COMMANDS, Entry, build
from tests.cli.terminal import PROGRAM, Perdure, in_a_terminal, process, refusal, started, surroundings

ENTRIES = [entry for entries in COMMANDS.values() for entry in entries]

WHAT_IS_LOADED = """
import sys
from perdure.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    print("loaded:", *sys.modules)
"""


def loaded_by(*arguments: str) -> set[str]:
    """The modules of a fresh interpreter that has run this command."""
    script = WHAT_IS_LOADED.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=surroundings({})
    )
    assert done.stderr == ""
    return set(done.stdout.partition("loaded:")[2].split())


def test_every_command_is_listed_under_a_heading(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure("--help", cwd=tmp_path, COLUMNS="80")

    assert ran.status == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    for heading, entries in COMMANDS.items():
        start = lines.index(f"{heading}:") + 1
        assert [line.split()[0] for line in lines[start : start + len(entries)]] == [entry.name for entry in entries]


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_every_command_can_be_loaded_and_its_examples_parsed(entry: Entry) -> None:
    command = build(entry)

    assert command.name == entry.name
    for example in entry.examples:
        name, *arguments = example.replace("'", "").split(" ", 1)
        assert name == entry.name
        given = arguments[0].replace('{"width": 80}', "{}").split() if arguments else []
        command.make_context(entry.name, given, resilient_parsing=False)


def test_alone_it_shows_the_help(perdure: Perdure, tmp_path: Path) -> None:
    ran = perdure(cwd=tmp_path)

    assert (ran.status, ran.err) == (0, "")
    assert ran.out == perdure("--help", cwd=tmp_path).out


def test_a_commands_help_has_examples_line_by_line(perdure: Perdure, tmp_path: Path) -> None:
    out = perdure("move", "-h", cwd=tmp_path).out

    assert "Examples:\n  perdure move 3fa2c1d0 --to front\n  perdure move 3fa2c1d0 --before 77b0e912\n" in out


def test_the_help_loads_neither_database_nor_pydantic() -> None:
    assert {"pydantic", "sqlite3", "asyncio", "rich", "perdure.cli.jobs"}.isdisjoint(loaded_by("--help"))


def test_a_health_probe_loads_neither_pydantic_nor_rich(here: App, folder: Path) -> None:
    here.enqueue("resize", {"width": 1})

    loaded = loaded_by("health", "--max-beat-age", "30", "--json", "--url", str(folder / "shop.db"))

    assert "sqlite3" in loaded
    assert {"pydantic", "asyncio", "rich"}.isdisjoint(loaded)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "shop.db", "--json", "queues"),
        ("queues", "--url", "shop.db", "--json"),
        ("--json", "queues", "--url", "shop.db"),
        ("--url", "elsewhere.db", "--json", "queues", "--url", "shop.db"),
        ("--debug", "--app", "shop:app", "queues", "--json"),
        ("queues", "--app", "shop:app", "--debug", "--json"),
    ],
)
def test_shared_options_stand_before_or_after_and_the_last_counts(
    perdure: Perdure, arguments: tuple[str, ...], here: App, folder: Path
) -> None:
    here.enqueue("resize", {"width": 1})

    assert [queue["name"] for queue in perdure(*arguments, cwd=folder).json()] == ["default"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "shop.db", "--json", "queues", "pause", "default"),
        ("queues", "--url", "shop.db", "pause", "default", "--json"),
        ("queues", "--json", "pause", "--url", "shop.db", "default"),
    ],
)
def test_they_reach_the_commands_of_a_group(
    perdure: Perdure, arguments: tuple[str, ...], here: App, folder: Path
) -> None:
    here.enqueue("resize", {"width": 1})

    assert perdure(*arguments, cwd=folder).json()["paused"] is True
    assert here.queues.list()[0].paused


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("jbos",), "there is no command 'jbos'; did you mean perdure jobs?"),
        (("xyzzy",), "there is no command 'xyzzy' (see"),
        (("help",), "did you mean perdure --help?"),
        (("LIST",), "did you mean perdure jobs?"),
        (("run",), "did you mean perdure worker?"),
        (("start",), "did you mean perdure worker?"),
        (("db", "create"), "did you mean perdure db upgrade?"),
        (("queues", "list"), "did you mean perdure queues?"),
        (("jobs", "--stat", "failed"), "--state"),
        (("jobs", "--limit", "many"), "perdure: --limit must be a whole number, at least 1, not 'many'"),
        (("jobs", "-n", "0"), "perdure: --limit must be a whole number, at least 1, not '0'"),
        (("health", "--max-beat-age", "x"), "perdure: --max-beat-age must be a number, at least 0, not 'x'"),
        (("priority", "abcd", "high"), "perdure: N must be a whole number, not 'high'"),
        (("worker", "--concurrency", "0"), "perdure: --concurrency must be a whole number, at least 1, not '0'"),
        (("worker", "--log-level", "Debug"), "one of debug, info, warning, error, not 'Debug'; did you mean debug?"),
        (("worker", "--log-format", "xml"), "perdure: --log-format must be one of human, json, not 'xml' (see"),
        (("job",), "ID is missing: The job's id"),
        (("queues", "puase", "mail"), "did you mean perdure queues pause?"),
        (("nodes", "more"), "unexpected extra argument(s) (more)"),
        (("--url",), "'--url' requires an argument"),
    ],
)
def test_what_was_typed_wrongly_is_one_line_that_says_how(
    perdure: Perdure, arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    line = refusal(perdure(*arguments, cwd=tmp_path))

    assert told in line
    assert "--help) [usage_error]" in line


def test_debug_shows_where_an_error_comes_from(perdure: Perdure, tmp_path: Path) -> None:
    plain = perdure("jobs", "--url", "gopher://x", cwd=tmp_path)
    shown = perdure("jobs", "--url", "gopher://x", "--debug", cwd=tmp_path)

    assert "Traceback" not in plain.err
    assert "Traceback" in shown.err
    assert shown.err.endswith(plain.err)
    assert plain.status == shown.status == 2


def test_a_database_that_is_not_there_is_not_made_by_looking(perdure: Perdure, tmp_path: Path) -> None:
    for command in (["jobs"], ["job", "abcd"], ["queues"], ["nodes"], ["cancel", "abcd"], ["status"]):
        assert "mistyped.db" in refusal(perdure(*command, "--url", "mistyped.db", cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}])  # met at exit, and in the middle of the command
def test_a_reader_that_has_seen_enough_ends_it_silently(here: App, folder: Path, unbuffered: dict[str, str]) -> None:
    here.enqueue_many([here.kinds.get("resize").new(width=1) for _ in range(400)])

    environment = surroundings({"PERDURE_URL": "shop.db"})
    environment.pop("PYTHONUNBUFFERED", None)
    environment |= unbuffered
    many = ["jobs", "--limit", "400"]
    for arguments in (many, [*many, "--json"], ["queues", "--json"], ["--version"], ["--help"], ["db", "sql"]):
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(
            [*PROGRAM, *arguments],
            cwd=folder,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment,
        )
        os.close(writing)
        assert done.stderr == "", arguments
        assert done.returncode == 0, arguments


LIVE_VIEWS = [
    ("jobs", "-f"),
    ("runs", "-f"),
    ("logs", "--follow"),
    ("jobs", "-f", "--json"),
    ("status", "-w", "--json"),
]


@pytest.mark.parametrize("view", LIVE_VIEWS, ids=" ".join)
def test_a_live_view_that_is_ended_by_ctrl_c_ends_well_and_without_a_word(
    here: App, folder: Path, view: tuple[str, ...]
) -> None:
    job = here.enqueue("send", {"to": "nobody"})
    here.worker(poll_s=0.02).run(until_idle=True)
    here.retry(job)  # it has runs and log lines, and has not ended

    of_one = (str(job.id),) if view[0] == "logs" else ()
    with started(*view, *of_one, cwd=folder, PERDURE_URL="shop.db") as going_on:
        assert going_on.stdout is not None
        assert going_on.stderr is not None
        assert going_on.stdout.readline()
        going_on.send_signal(signal.SIGINT)
        assert going_on.stderr.read() == ""
    assert going_on.returncode == 0


def test_ctrl_c_at_a_question_is_status_130_and_changes_nothing(here: App, folder: Path) -> None:
    job = here.enqueue("resize", {"width": 1})

    ran = in_a_terminal("cancel", "--kind", "resize", cwd=folder, prompt="[y/N]", typed="\x03", PERDURE_URL="shop.db")

    assert ran.status == 130
    assert "Traceback" not in ran.out
    assert here.existing(job).state == "queued"


def test_the_help_says_what_each_exit_status_means(perdure: Perdure, tmp_path: Path) -> None:
    told = perdure("--help", cwd=tmp_path).out.partition("Exit status:")[2]

    assert all(f"{status} " in told for status in (0, 1, 2, 3, 75, 130))


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_usage_lines_name_arguments_without_braces(perdure: Perdure, entry: Entry, tmp_path: Path) -> None:
    out = perdure(entry.name, "--help", cwd=tmp_path).out
    usage = out.splitlines()[0]

    assert not set("{}<>") & set(usage)
    assert "[[" not in usage
    assert "<str>" not in out.partition("Options:")[0]


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("job", "Usage: perdure job [OPTIONS] ID"),
        ("cancel", "Usage: perdure cancel [OPTIONS] [ID]..."),
        ("enqueue", "Usage: perdure enqueue [OPTIONS] KIND [NAME=VALUE]..."),
        ("priority", "Usage: perdure priority [OPTIONS] ID N"),
        ("runs", "Usage: perdure runs [OPTIONS] [ID]"),
        ("init", "Usage: perdure init [OPTIONS] [FILE]"),
        ("db backup", "Usage: perdure db backup [OPTIONS] FILE"),
        ("queues pause", "Usage: perdure queues pause [OPTIONS] NAME"),
    ],
)
def test_a_usage_line_can_be_typed(perdure: Perdure, command: str, usage: str, tmp_path: Path) -> None:
    assert perdure(*command.split(), "-h", cwd=tmp_path).out.splitlines()[0] == usage


def test_there_are_no_colours_where_nobody_sees_them(here: App, folder: Path) -> None:
    job = here.enqueue("resize", {"width": 1})

    for arguments in (["jobs"], ["job", str(job.id)], ["queues"]):
        assert "\x1b" not in process(*arguments, cwd=folder, PERDURE_URL="shop.db", TERM="xterm-256color").out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("perdure jo", {"jobs", "job"}),
        ("perdure jobs --st", {"--state"}),
        ("perdure queues pa", {"pause"}),
        ("perdure db back", {"backup"}),
    ],
)
def test_bash_is_offered_what_fits(words: str, offered: set[str], tmp_path: Path) -> None:
    last = str(len(words.split()) - 1)
    ran = process(cwd=tmp_path, _PERDURE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=last)

    assert (ran.status, ran.err) == (0, "")
    assert set(ran.out.split()) == offered

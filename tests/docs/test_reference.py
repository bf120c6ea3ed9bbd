"""The pages name everything there is to give and to ask, and nothing that is not there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import griffe
import pytest

from perdure import Flow, Job, JobContext, Perdure, Retry, Run, Unique, app
from perdure.aio import AsyncPerdure
from perdure.config import Config
from perdure.flow import views as flow_views
from perdure.job import views
from perdure.kind import Bound, Kind
from perdure.options import OptionFields
from perdure.queues import Queues
from perdure.schedules import ScheduleFields, Schedules
from perdure.templates import Template, Templates
from perdure.testing import Kit
from perdure.worker import context
from perdure.worker.health import Health
from perdure.worker.options import OPTION_NAMES
from tests.docs import site
from tests.docs.command_tree import Command, every, program
from tests.docs.pages import THEIRS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
COMMANDS = {command.path: command for command in every(program().commands)}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_CALL = re.compile(r"(?<![\w./])(app\.(?:queues|templates|schedules|aio)|app|ctx|t|send)\.(?!py\b)([a-z]\w*)")
_OF = {
    "app": Perdure,
    "app.queues": Queues,
    "app.templates": Templates,
    "app.schedules": Schedules,
    "app.aio": AsyncPerdure,
    "ctx": JobContext,
    "t": Kit,
    "send": Kind,
}


def words(page: str) -> set[str]:
    """Every name inside of code."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    code = " ".join((*_INLINE.findall(_BLOCK.sub("", text)), *(block for _, block in _BLOCK.findall(text))))
    return set(re.findall(r"\w+", code))


def public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_every_option_setting_and_verb_is_explained() -> None:
    said = words("jobs.md")
    asked = {
        *OptionFields.__annotations__,
        *(field.name for kind in (Retry, Unique, Config) for field in fields(kind)),
        *(public(Perdure) - app.INNER),
    }
    pages = ("worker.md", "handlers.md", "testing.md", "reservations.md", "schedules.md", "flows.md", "limits.md")
    elsewhere = set().union(*map(words, pages))
    assert asked - said - elsewhere == set()


def test_every_field_of_a_job_is_explained() -> None:
    opaque = {"kind_version", "position", "waits_for", "node_id", "run_id"}
    assert public(Job) - views.INNER - opaque - words("jobs.md") == set()
    assert public(Run) - views.INNER - words("jobs.md") == set()


def test_every_field_of_a_flow_is_explained() -> None:
    assert public(Flow) - flow_views.INNER - words("flows.md") == set()


def test_every_verb_and_field_of_a_template_is_explained() -> None:
    assert public(Templates) - words("templates.md") == set()
    assert {field.name for field in fields(Template)} - words("templates.md") == set()


def test_everything_a_handler_can_ask_its_context_is_explained() -> None:
    assert public(JobContext) - context.INNER - words("handlers.md") == set()


def test_every_option_and_verb_of_schedules_is_explained() -> None:
    assert {*ScheduleFields.__annotations__, *public(Schedules)} - words("schedules.md") == set()


def test_every_option_and_health_field_of_a_worker_is_explained() -> None:
    assert {*OPTION_NAMES, *(field.name for field in fields(Health))} - words("worker.md") == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_calls_nothing_that_is_not_there(page: Path) -> None:
    text = page.read_text("utf-8")
    for theirs in (block for _, block in _BLOCK.findall(text) if block.startswith(THEIRS)):
        text = text.replace(theirs, "")
    calls = {call for code in codes(text) for call in _CALL.findall(code)}
    assert [f"{owner}.{name}" for owner, name in sorted(calls) if not has(_OF[owner], name)] == []


def test_every_public_member_of_a_class_in_the_reference_is_documented() -> None:
    """The site shows no member without a docstring."""
    package = griffe.load("perdure", search_paths=[ROOT / "src"])
    paths = [path for _, paths in site.REFERENCE.values() for path in paths]
    strict = [path for path in paths if not site.entry_options(path)["show_if_no_docstring"]]
    assert [name for path in strict for name in undocumented(package, path)] == []
    assert "perdure.Job.queue" in undocumented(package, "perdure.Job"), "shown without, and explained in a table"


def undocumented(package: griffe.Object | griffe.Alias, path: str) -> list[str]:
    """The members of a class that are for users and have no docstring."""
    entry = package[path.removeprefix("perdure.")]
    if not entry.is_class:
        return []
    members = entry.all_members if site.entry_options(path)["inherited_members"] else entry.members
    hidden = site.inner_names(path)
    return [
        f"{path}.{name}"
        for name, member in members.items()
        if not name.startswith("_") and name not in hidden and not member.has_docstring
    ]


def has(owner: type, name: str) -> bool:
    return hasattr(owner, name) or name in KNOWN.get(owner, ())


KNOWN: dict[type, tuple[str, ...]] = {
    Perdure: ("config", "kinds"),  # set when it is made, as below
    AsyncPerdure: ("queues", "templates", "schedules"),
    JobContext: ("messages", "progressed", "measured", "artifacts", "enqueued"),  # of the kit's own context
    Kind: tuple(public(Bound)),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_commands_and_options_that_there_are(page: Path) -> None:
    wrong = [code for code in codes(page.read_text("utf-8")) if (said := typed(code)) and not is_known(said)]
    assert wrong == []


def codes(text: str) -> list[str]:
    """Code in the running text, and every line of its blocks."""
    lines = [line for _, block in _BLOCK.findall(text) for line in block.splitlines()]
    return [*_INLINE.findall(_BLOCK.sub("", text)), *lines]


def typed(code: str) -> list[str] | None:
    """The words of a `perdure …` command, up to one of another program. None: it is something else."""
    found = re.match(r"(?:\$ )?perdure ([a-z-].*)", code.partition(" #")[0].partition(" -- ")[0])
    return found[1].split() if found and not re.match(r"\d|demo: ", found[1]) else None


def is_known(said: list[str]) -> bool:
    if said[0].startswith("-"):
        return takes(program(), said)
    command = COMMANDS.get(f"perdure {' '.join(said[:2])}") or COMMANDS.get(f"perdure {said[0]}")
    return command is not None and takes(command, said)


def takes(command: Command, said: list[str]) -> bool:
    options = {
        name for one in (*command.parameters, *program().parameters) for name in re.findall(r"--[\w-]+", one.names)
    }
    return {word.partition("=")[0] for word in said if word.startswith("--")} <= options | {"--help"}


def test_a_wrong_command_is_noticed() -> None:
    assert not is_known(["bojs"])
    assert not is_known(["jobs", "--sate", "failed"])
    assert is_known(["jobs", "--state", "failed"])

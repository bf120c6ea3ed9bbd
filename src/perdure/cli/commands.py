"""Every command: where it is, what it is for, and examples. Read by `main`; a command's module is loaded when it runs.

The sentences are for the list of all commands; the whole help of each is its docstring.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command. `place`: the function, or the group, that is loaded for it."""

    name: str
    place: str
    says: str
    examples: tuple[str, ...] = ()


COMMANDS: dict[str, tuple[Entry, ...]] = {
    "Start": (
        Entry(
            "demo",
            "perdure.cli.demo:demo",
            "See it work: failures, a killed worker, its jobs rescued.",
            ("demo",),
        ),
        Entry("init", "perdure.cli.init:init", "Write a small app that works, and say how to run it.", ("init",)),
        Entry(
            "worker",
            "perdure.cli.worker:worker",
            "Run jobs until a signal says stop.",
            ("worker shop.jobs:app --concurrency 20", "worker shop.jobs:app --queue mail --until-idle"),
        ),
        Entry(
            "enqueue",
            "perdure.cli.enqueue:enqueue",
            "Enqueue a job of an app's kind and print it.",
            (
                "enqueue send to=ann@example.org --app shop.jobs:app",
                "enqueue resize --payload '{\"width\": 80}' --delay 10m --tag night",
            ),
        ),
        Entry(
            "check",
            "perdure.cli.check:check",
            "Check that an app can run the jobs that are stored.",
            ("check shop.jobs:app",),
        ),
    ),
    "Look at jobs": (
        Entry(
            "status",
            "perdure.cli.status:status",
            "Answer six questions about what is going on.",
            ("status", "status --watch"),
        ),
        Entry(
            "explain",
            "perdure.cli.explain:explain",
            "Say why a job is not running, or how it ended.",
            ("explain 3fa2c1d0",),
        ),
        Entry(
            "jobs",
            "perdure.cli.jobs:jobs",
            "List jobs, the newest first.",
            ("jobs --state failed --since 1h", "jobs --queue mail --state queued", "jobs --kind send --follow"),
        ),
        Entry("job", "perdure.cli.job:job", "Show everything about one job.", ("job 3fa2c1d0", "job 3fa2c1d0 --json")),
        Entry(
            "runs",
            "perdure.cli.runs:runs",
            "List attempts, of all jobs or of one, the newest first.",
            ("runs 3fa2c1d0", "runs --state failed --since 1d", "runs --follow"),
        ),
        Entry("logs", "perdure.cli.lines:logs", "Print what a job has logged.", ("logs 3fa2c1d0 --follow",)),
    ),
    "Decide about jobs": (
        Entry(
            "retry",
            "perdure.cli.verbs:retry",
            "Run failed or cancelled jobs again.",
            ("retry 3fa2c1d0", "retry --kind send --since 1d", "retry --state cancelled --tag import --yes"),
        ),
        Entry(
            "cancel",
            "perdure.cli.verbs:cancel",
            "Cancel waiting jobs, and ask running ones to stop.",
            ("cancel 3fa2c1d0", "cancel --queue mail --state queued --limit 100"),
        ),
        Entry(
            "pause",
            "perdure.cli.verbs:pause",
            "Set waiting jobs aside until they are resumed.",
            ("pause 3fa2c1d0 77b0e912", "pause --kind send"),
        ),
        Entry(
            "resume",
            "perdure.cli.verbs:resume",
            "Let paused or parked jobs go on.",
            ("resume 3fa2c1d0", "resume --state parked"),
        ),
        Entry(
            "move",
            "perdure.cli.order:move",
            "Give a waiting job another place in its queue.",
            ("move 3fa2c1d0 --to front", "move 3fa2c1d0 --before 77b0e912"),
        ),
        Entry(
            "priority", "perdure.cli.order:priority", "Give a waiting job another priority.", ("priority 3fa2c1d0 10",)
        ),
        Entry(
            "delete", "perdure.cli.verbs:delete", "Remove ended jobs with their runs and logs.", ("delete 3fa2c1d0",)
        ),
    ),
    "Queues and workers": (
        Entry(
            "queues",
            "perdure.cli.queues:queues",
            "List queues and what is in them; pause and resume them.",
            ("queues", "queues pause mail", "queues resume mail"),
        ),
        Entry("nodes", "perdure.cli.nodes:nodes", "List the workers that live, and the last ones that stopped."),
        Entry(
            "kinds",
            "perdure.cli.kinds:kinds",
            "List the kinds of an app, and of the jobs stored.",
            ("kinds --app shop.jobs:app",),
        ),
        Entry(
            "health",
            "perdure.cli.health:health",
            "Tell whether the database answers and a worker lives.",
            ("health --max-beat-age 30",),
        ),
    ),
    "Look after it": (
        Entry(
            "doctor",
            "perdure.cli.doctor:doctor",
            "Look for broken promises in the database.",
            ("doctor", "doctor --repair"),
        ),
        Entry(
            "db",
            "perdure.cli.db:db",
            "Create, upgrade, check, show and back up the database.",
            ("db check", "db upgrade", "db backup copy.db"),
        ),
    ),
}

_OTHER_NAMES: dict[str, str] = {
    "perdure --help": "help commands",
    "perdure --version": "version",
    "perdure worker": "run start work serve consume consumer",
    "perdure enqueue": "add push put submit send new",
    "perdure jobs": "list ls",
    "perdure jobs --state failed": "failed failures errors",
    "perdure jobs --follow": "tail follow watch",
    "perdure status": "stat stats info overview inspect",
    "perdure status --watch": "top monitor dashboard",
    "perdure job ID": "show get view describe",
    "perdure explain ID": "why",
    "perdure nodes": "ps workers processes",
    "perdure retry": "requeue rerun redo again redrive",
    "perdure cancel": "stop kill abort revoke",
    "perdure delete": "remove rm del",
    "perdure health": "ping live alive",
    "perdure db upgrade": "migrate upgrade create setup",
    "perdure db backup": "backup dump",
}
MEANT: dict[tuple[str, str], str] = {
    **{("perdure", name): command for command, names in _OTHER_NAMES.items() for name in names.split()},
    **{("db", name): "perdure db upgrade" for name in ("create", "init", "migrate", "setup", "update", "make", "new")},
    **{("db", name): "perdure db check" for name in ("show", "status", "info", "version", "verify")},
    **{("db", name): "perdure db backup" for name in ("copy", "dump", "save", "export")},
    ("db", "schema"): "perdure db sql",
    **{("queues", name): "perdure queues" for name in ("list", "ls", "show", "status")},
    **{("queues", name): "perdure queues pause" for name in ("stop", "hold", "close")},
    **{("queues", name): "perdure queues resume" for name in ("start", "continue", "unpause", "open")},
}
"""What people type who come from elsewhere: the group and the word, and the command that does it here."""

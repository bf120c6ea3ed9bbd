"""`perdure status`: what is going on, in six answers. Asks `ops/status`; `answers` lays them out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.show import Json, moment_json, print_json, print_json_line
from perdure.cli.target import App, Url, existing
from perdure.cli.typed import options_of

if TYPE_CHECKING:
    from perdure.clock import Micros
    from perdure.ops.status import Status
    from perdure.store.protocols import Store

EVERY_S = 2.0
_PIPED = 100
_INSTANTS = ("since", "last")
_ANSWERS = ("outstanding", "failed", "stuck", "durations", "duplicates", "ran")

Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Go on, every 2 s, until Ctrl-C. Without a terminal once; with --json one line each time.",
    ),
]

StuckAfter = Annotated[
    int, typer.Option("--stuck-after", min=1, max=10**9, metavar="SECONDS", help="How long is too long to wait or run.")
]


def status(
    *, watch: Watch = False, stuck_after: StuckAfter = 300, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Answer six questions: what is outstanding, failed, stuck, slow, duplicated, and what ran in the last hour."""
    with existing(url, app) as store:
        ask = partial(_ask, store, stuck_after)
        if not watch or not (json or sys.stdout.isatty()):
            _once(ask(), options_of(url, app), json=json)
            return
        with suppress(KeyboardInterrupt):  # that is how a live view ends
            if json:
                _lines(ask)
            else:
                _live(ask, options_of(url, app))


def _once(found: Status, options: str, *, json: bool) -> None:
    if json:
        print_json(plain_status(found))
    else:
        from perdure.cli.answers import screen
        from perdure.cli.layout import Space
        from perdure.cli.tables import console, put

        put(screen(found, Space(console(_PIPED).width, options=options)), piped=_PIPED, crop=False)


def _lines(ask: Callable[[], Status]) -> None:
    while True:
        print_json_line(plain_status(ask()))
        time.sleep(EVERY_S)


def _live(ask: Callable[[], Status], options: str) -> None:
    from rich.live import Live

    from perdure.cli.answers import screen
    from perdure.cli.layout import space_in
    from perdure.cli.tables import console

    out = console()
    with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            space = space_in(out.width, out.height)._replace(options=options)
            live.update(screen(ask(), space), refresh=True)
            time.sleep(EVERY_S)


def _ask(store: Store, stuck_after: int) -> Status:
    from perdure.clock import SystemClock
    from perdure.ops.status import status as asked

    return asked(store, SystemClock().now(), stuck_after * 1_000_000)


def plain_status(found: Status) -> dict[str, object]:
    """The answers as JSON data; the keys are those of `store/tallies`."""
    answers = {name: [_plain(row._asdict()) for row in getattr(found, name)] for name in _ANSWERS}
    return {"at": _instant(found.at), "complete": found.is_complete, **answers}


def _plain(row: dict[str, object]) -> dict[str, object]:
    from perdure.ids import to_uuid

    shown = dict(row)
    for name, value in row.items():
        if name in _INSTANTS and isinstance(value, int):
            shown[name] = _instant(value)  # type: ignore[arg-type]
        elif isinstance(value, bytes):
            shown[name] = str(to_uuid(value))
    return shown


def _instant(at: Micros) -> str | None:
    from perdure.clock import to_datetime

    return moment_json(to_datetime(at))

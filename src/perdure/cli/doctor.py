"""`perdure doctor`: shows what is wrong, and puts right what can be. Asks `ops/doctor` and `ops/repairs`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.render import Json, Yes, print_json, print_table
from perdure.cli.target import App, Url, database

if TYPE_CHECKING:
    from perdure.ops.doctor import Finding
    from perdure.ops.repairs import Repair
    from perdure.store.protocols import Store

Repairing = Annotated[
    bool, typer.Option("--repair", help="Repair what can be repaired: shows what would be done, and asks.")
]


def doctor(url: Url = None, app: App = None, repair: Repairing = False, yes: Yes = False, json: Json = False) -> None:
    """Look for broken promises in the database. Exits with 1 if there is a violation, or one is left after --repair."""
    from perdure.ops.doctor import examine, is_healthy
    from perdure.ops.forms import finding_json

    if repair and json and not yes:
        raise typer.BadParameter("--json prints nothing else, so it cannot ask: add --yes to repair")
    done: dict[str, int] = {}
    with database(url, app) as store:
        store.require_current()
        findings = examine(store)
        if not json:
            _print_findings(findings)
        if repair:
            done = _repair(store, findings, yes=yes)
        if any(done.values()):
            findings = examine(store)
    left = _left(findings, done) if repair else {}
    if json:
        repaired = {name: changed for name, changed in done.items() if changed}
        found = list(map(finding_json, findings))
        print_json({"healthy": is_healthy(findings), "findings": found, "repaired": repaired, "left": left})
    else:
        if any(done.values()):
            _print_findings(findings)
        for name, reason in left.items():
            print(f"Left: {name}: {reason}.")
    raise typer.Exit(0 if is_healthy(findings) else 1)


def _repair(store: Store, findings: Sequence[Finding], *, yes: bool) -> dict[str, int]:
    """Apply the repairs for these findings and for those that appear after them. Returns how much each one changed."""
    from perdure.ops.doctor import examine
    from perdure.ops.repairs import repair, repairs_for

    done: dict[str, int] = {}
    cures = repairs_for(findings)
    while cures and (yes or _agreed(cures)):
        with _log_on_stderr():
            done |= {cure.name: repair(store, cure.name) for cure in cures}
        cures = [cure for cure in repairs_for(examine(store)) if cure.name not in done]
    return done


def _left(findings: Sequence[Finding], done: Mapping[str, int]) -> dict[str, str]:
    """The violations that are still there after the repairs, and why."""
    from perdure.ops.doctor import is_healthy

    return {found.name: _why_left(found, done) for found in findings if not is_healthy([found])}


def _why_left(found: Finding, done: Mapping[str, int]) -> str:
    if found.repair is None:
        return "there is no safe repair; its explanation says what to do"
    if found.repair not in done:
        return f"its repair {found.repair} was not applied"
    if not done[found.repair]:
        return f"its repair {found.repair} found nothing that it may change; its explanation says what to do"
    return f"its repair {found.repair} changed {done[found.repair]}, and more is there now; run it once more"


def _agreed(cures: Sequence[Repair]) -> bool:
    print("To be done, each in its own transaction, which looks again first:")
    for cure in cures:
        print(f"  {cure.name}: {cure.does}")
    return typer.confirm("Do it?")


@contextmanager
def _log_on_stderr() -> Generator[None, None, None]:
    """Each repair is logged by itself; here that is how the user sees it."""
    import logging

    logger = logging.getLogger("perdure.doctor")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _print_findings(findings: Sequence[Finding]) -> None:
    from perdure.ops.doctor import CHECKS

    if not findings:
        print(f"Healthy: {len(CHECKS)} checks, nothing found.")
        return
    columns = ("finding", "severity", "count", "what it means", "examples", "repair")
    rows = [
        (
            found.name,
            found.severity,
            str(found.count),
            found.explanation,
            "\n".join(found.examples),
            found.repair or "-",
        )
        for found in findings
    ]
    print_table(columns, rows, keep=("finding", "severity", "count", "examples", "repair"))

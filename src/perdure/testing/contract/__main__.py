"""The contract suite from the command line: `python -m perdure.testing.contract URL`. Calls `suite`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from perdure.errors import ConfigError, PerdureError
from perdure.store.open import open_store
from perdure.testing.contract.rig import Opener, Rig
from perdure.testing.contract.suite import GROUPS, Judged, Verdict, cases, is_empty, judged, require_asserts


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: everything passed or is not supported; 1: something failed; 2: the suite could not run."""
    chosen = _parser().parse_args(arguments)
    console = Console()
    try:
        require_asserts()
        opener = _opener(chosen.store)
        _refuse_a_database_in_use(chosen.url, opener, force=chosen.force)
    except PerdureError as error:
        console.print(str(error), markup=False, highlight=False)
        return 2
    results: list[Judged] = []
    for result in judged(cases(chosen.only or GROUPS), lambda: Rig(chosen.url, opener)):
        results.append(result)
        if result.verdict == Verdict.FAILED:
            console.print(f"\nFAILED {result.case}\n{result.why}", markup=False, highlight=False)
    console.print(_report(results))
    _print_reasons(console, results)
    return 1 if any(result.verdict == Verdict.FAILED for result in results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perdure.testing.contract",
        description="Runs the contract suite against a store and reports what passed, failed, or is not supported.",
    )
    parser.add_argument("url", help="the database, as for Perdure(url); it must hold no jobs")
    parser.add_argument(
        "--store", metavar="MODULE:FUNCTION", help="a function that opens a store of your own, given the URL"
    )
    parser.add_argument("--only", metavar="GROUP", nargs="+", choices=GROUPS, help=f"some of: {', '.join(GROUPS)}")
    parser.add_argument("--force", action="store_true", help="use a database that holds jobs: THEY ARE ALL DELETED")
    return parser


def _opener(name: str | None) -> Opener:
    if name is None:
        return open_store
    module, _, function = name.partition(":")
    try:
        opener: Opener = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--store {name}: {error}; give an importable module and a function in it, as in shop.queue:open_store",
            code="store_unknown",
        ) from error
    return opener


def _refuse_a_database_in_use(url: str, opener: Opener, *, force: bool) -> None:
    if not force and not is_empty(url, opener):
        raise ConfigError(
            f"{url} holds jobs, and the suite deletes what it finds; give an empty database, or --force",
            code="database_in_use",
        )


def _report(results: Iterable[Judged]) -> Table:
    table = Table("protocol", *Verdict)
    counts = {group: Counter[Verdict]() for group in GROUPS}
    for result in results:
        counts[result.case.group][result.verdict] += 1
    for group, counted in counts.items():
        if counted:
            table.add_row(group, *(str(counted[verdict]) for verdict in Verdict))
    table.add_section()
    table.add_row("all", *(str(sum(counted[verdict] for counted in counts.values())) for verdict in Verdict))
    return table


def _print_reasons(console: Console, results: Iterable[Judged]) -> None:
    reasons = Counter(result.why for result in results if result.verdict == Verdict.NOT_SUPPORTED)
    for reason, count in reasons.items():
        console.print(f"not supported ({count}): {reason}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())

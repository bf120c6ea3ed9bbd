"""docs/errors.md is what `python -m tests.docs.errors_page` makes of the source and docs/errors.toml."""

from __future__ import annotations

import re

from perdure import errors
from tests.docs import error_tree, errors_page


def test_every_code_has_an_explanation() -> None:
    assert errors_page.unexplained() == set(), "explain them in docs/errors.toml"


def test_every_code_that_the_command_line_writes_by_itself_has_an_explanation() -> None:
    sources = (path.read_text("utf-8") for path in (error_tree.PACKAGE / "cli").rglob("*.py"))
    written = {code for source in sources for code in re.findall(r" \[([a-z]+_[a-z_]+)\]\"", source)}

    assert written == {"usage_error", "internal_error"}
    assert written <= {code for section in errors_page.sections() for code in section.codes}


def test_the_page_is_up_to_date() -> None:
    committed = errors_page.PAGE.read_text("utf-8")
    assert committed == errors_page.page(), "run: python -m tests.docs.errors_page"


def test_every_code_is_explained_once() -> None:
    explained = [code for section in errors_page.sections() for code in section.codes]
    assert sorted(explained) == sorted(set(explained))


def test_the_page_names_only_classes_that_can_be_imported() -> None:
    named = {name for names in error_tree.codes().values() for name in names}
    named |= {section.composed for section in errors_page.sections() if section.composed}
    assert {name for name in named if not hasattr(errors, name)} == set()


def test_a_code_is_shown_with_the_class_that_is_raised_with_it() -> None:
    assert error_tree.codes()["database_busy"] == {"DatabaseBusy"}
    assert error_tree.codes()["unique_violation"] == {"StoreError"}, "a private class, shown as its public one"
    assert re.search(r"\| `<verb>_refused` \| `TransitionRefused` \|", errors_page.page())

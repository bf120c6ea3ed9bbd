"""The runner of pages sees what is wrong with a page: otherwise the other tests here would say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.comparing import Reader

ONE, TWO = "01a1e23d-c49d-7000-b03a-23eee166015c", "01a1e23d-cca7-7000-8ffe-492ce1428513"


def problems(page: str, folder: Path) -> list[str]:
    return pages.run_text(page, folder).problems


def test_output_that_differs_is_a_problem(folder: Path) -> None:
    assert problems("```console\n$ echo one\ntwo\n```\n", folder)
    assert not problems("```console\n$ echo one\none\n```\n", folder)


def test_more_or_less_output_than_shown_is_a_problem(folder: Path) -> None:
    assert problems("```console\n$ echo one\n```\n", folder)
    assert problems("```console\n$ echo one\none\ntwo\n```\n", folder)


def test_a_command_that_fails_is_a_problem_whatever_it_was_to_print(folder: Path) -> None:
    assert problems("```console\n$ false\n…\n```\n", folder)


def test_a_failure_that_is_shown_is_none(folder: Path) -> None:
    assert not problems("```console\n$ perdure job --url none.db 1234\nperdure: …\n```\n", folder)


def test_a_program_is_run_and_its_output_compared(folder: Path) -> None:
    page = "```python\nprint(6 * 7)\n```\n\n```text\n{}\n```\n"
    assert not problems(page.format(42), folder)
    assert problems(page.format(41), folder)


def test_a_program_that_raises_is_a_problem(folder: Path) -> None:
    assert problems("```python\nraise SystemExit(1)\n```\n", folder)


def test_a_text_that_does_not_follow_at_once_is_not_its_output(folder: Path) -> None:
    assert problems("```python\nprint(42)\n```\n\nSomething else:\n\n```text\n42\n```\n", folder)


def test_files_are_written_and_added_to(folder: Path) -> None:
    files = "```python\n# m.py\na = 1\n```\n```python\n# m.py (added)\nb = a + 1\n```\n"
    assert not problems(files + "```python\nimport m\nprint(m.b)\n```\n```text\n2\n```\n", folder)


def test_another_terminal_goes_on_while_the_page_does_and_ends_with_it(folder: Path) -> None:
    page = "```console\n# another terminal\n$ sh -c 'echo $$ > pid; echo ready; exec sleep 1000'\nready\n```\n"
    assert not problems(page + "```console\n$ kill -0 $(cat pid)\n```\n", folder)
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_another_terminal_that_does_not_print_what_is_shown_is_a_problem(folder: Path) -> None:
    assert problems("```console\n# another terminal\n$ echo other\nready\n```\n", folder)


def test_the_code_of_others_is_not_run(folder: Path) -> None:
    assert pages.run_text("```python\n# Celery\nimport celery\n```\n", folder) == (0, [], 0)


def test_what_is_marked_is_left_out_and_counted(folder: Path) -> None:
    marked = "<!-- not run: it needs a server -->\n\n```console\n$ false\n```\n"
    assert pages.run_text(marked, folder) == (0, [], 1)
    assert pages.run_text(f"{marked}\n```console\n$ true\n```\n", folder) == (1, [], 1)


def test_a_mark_without_a_reason_is_none(folder: Path) -> None:
    assert problems("<!-- not run: -->\n\n```console\n$ false\n```\n", folder)


def test_a_variable_that_was_exported_stays(folder: Path) -> None:
    assert not problems("```console\n$ export PERDURE_X=7\n$ echo $PERDURE_X\n7\n```\n", folder)


def test_a_command_killed_ends_with_what_a_shell_says(folder: Path) -> None:
    assert not problems("```console\n$ kill -9 $$\nKilled\n```\n", folder)


@pytest.mark.parametrize(
    ("wanted", "printed"),
    [
        ("took 12 ms", "took 3.5 s"),
        ("at 2026-01-01 10:00:00", "at 2027-02-02 11:11:11"),
        ("a  b", "a b"),
        ("one … three", "one two three"),
        ("…\nlast", "first\nsecond\nlast"),
        (f"job {ONE}", f"job {TWO}"),
        ("job 3fa2c1d0", "job 77b0e912"),
    ],
)
def test_what_varies_may_vary(wanted: str, printed: str) -> None:
    assert Reader().compared(wanted, printed) is None


@pytest.mark.parametrize(
    ("wanted", "printed"),
    [
        ("took 12 jobs", "took 13 jobs"),
        ("…\nlast", "first\nsecond"),
        ("one … three", "one two"),
        (f"{ONE} {ONE}", f"{ONE} {TWO}"),
        (f"{ONE}\n{TWO}", f"{ONE}\n{ONE}"),
    ],
)
def test_what_does_not_vary_may_not(wanted: str, printed: str) -> None:
    assert Reader().compared(wanted, printed) is not None


def test_an_id_of_the_page_means_the_real_one_in_a_command_also_by_its_tail() -> None:
    reader = Reader()
    assert reader.compared(f"job {ONE}", f"job {TWO}") is None
    assert reader.in_a_command("perdure job 166015c") == f"perdure job {TWO}"
    assert reader.in_a_command("perdure job 99999999") == "perdure job 99999999"

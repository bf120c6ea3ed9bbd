"""Errors are part of the interface: every code is documented, and every documented code exists."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

import perdure
from perdure import errors
from perdure.errors import PerdureError, Remedy
from perdure.payload.codec import Codec

PACKAGE = Path(perdure.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"
EVERY_ERROR = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, PerdureError)]
CODE = re.compile(r"^\| `([a-z_<>]+)`", re.MULTILINE)


def codes_in_the_package() -> set[str]:
    """Every code that is written down: as `code="…"`, as a class's default, or in a table of a driver's errors."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.keyword(arg="code") | ast.Assign(targets=[ast.Name(id="default_code")]):
                    found |= _texts(node.value)
                case ast.Tuple(elts=[first, second, *_]) if _names_an_error(first):
                    found |= _texts(second)
    return found


def _texts(value: ast.expr) -> set[str]:
    return {value.value} if isinstance(value, ast.Constant) and isinstance(value.value, str) else set()


def _names_an_error(node: ast.expr) -> bool:
    known = getattr(errors, getattr(node, "id", ""), None)
    return isinstance(known, type) and issubclass(known, PerdureError)


def test_every_code_is_documented() -> None:
    documented = set(CODE.findall(DOCUMENT.read_text("utf-8")))
    assert codes_in_the_package() - documented == set()


def test_every_documented_code_exists() -> None:
    documented = {code for code in CODE.findall(DOCUMENT.read_text("utf-8")) if "<" not in code}
    package = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    known = {code for code in documented if f'"{code}"' in package or f"[{code}]" in package}  # or as it is printed
    assert documented == known


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or "")) | {"PerdureError"}
    assert drawn == {cls.__name__ for cls in EVERY_ERROR}


@pytest.mark.parametrize("cls", EVERY_ERROR)
def test_an_error_crosses_processes_with_all_that_it_carries(cls: type[PerdureError]) -> None:
    remedy = Remedy("retry it", "perdure retry 5{database} runs it")
    error = cls("queue is held", code="some_code", option="queue", remedy=remedy)

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again)) == (cls, "queue is held; retry it [some_code]")
    assert vars(again) == {"code": "some_code", "option": "queue", "remedy": remedy}


def test_what_was_wrong_with_the_arguments_crosses_processes() -> None:
    def send(to: str, count: int) -> None: ...

    with pytest.raises(errors.InvalidPayload) as refused:
        Codec(send, "send").encode({"too": 1, "to": "ann", "count": "x"})
    again = pickle.loads(pickle.dumps(refused.value))

    assert (again.kind, again.parameters) == ("send", "to: str, count: int")
    assert [problem.place for problem in again.problems] == ["'count'", "'too'"]
    assert str(again) == str(refused.value)

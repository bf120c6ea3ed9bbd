"""What a contract test is made of. Used by every file of the suite; collected by `suite`.

A contract test is a function `test_…(rig)` with plain asserts, so that pytest and the command line run the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, cast

from perdure.errors import PerdureError
from perdure.job.model import Failure
from perdure.testing.contract.rig import Rig

P = ParamSpec("P")
E = TypeVar("E", bound=BaseException)

_VALUES = "__contract_values__"


class Case(NamedTuple):
    """One test of the suite: `group` is the file, `name` the sentence."""

    group: str
    name: str
    test: Callable[..., None]
    values: tuple[Any, ...] = ()

    def run(self, rig: Rig) -> None:
        """Run the test; raises what it raises. The caller opens and closes the rig."""
        self.test(rig, *self.values)

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


def each(*values: object) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """One case per value, which the test takes after the rig; a tuple means several arguments."""

    def mark(test: Callable[P, None]) -> Callable[P, None]:
        setattr(test, _VALUES, values)
        return test

    return mark


def cases_of(group: str, functions: Iterable[tuple[str, Callable[..., None]]]) -> list[Case]:
    """The cases of one file, in source order."""
    found: list[Case] = []
    for name, test in functions:
        sentence = name.removeprefix("test_").replace("_", " ")
        values: tuple[object, ...] | None = getattr(test, _VALUES, None)
        if values is None:
            found.append(Case(group, sentence, test))
            continue
        for value in values:
            arguments: tuple[Any, ...] = cast("Any", value) if type(value) is tuple else (value,)
            shown = ", ".join(map(_shown, arguments))
            found.append(Case(group, f"{sentence} ({shown})", test, arguments))
    return found


def _shown(value: object) -> str:
    """A short text for a value: named tuples without empty fields, long or unprintable text shortened."""
    if isinstance(value, Failure):
        return value.message
    if isinstance(value, tuple):
        fields = cast("tuple[object, ...]", value)
        return f"{type(fields).__name__}({', '.join(_shown(part) for part in fields if part not in (None, 0, ''))})"
    if isinstance(value, str):
        return value if value.isprintable() and value.isascii() and 0 < len(value) <= 30 else ascii(value)[:30]
    return str(value)


class Raises(Generic[E]):
    """What `raises` returns; `error` is set once the block has ended."""

    error: E

    def __init__(self, wanted: type[E], code: str | None) -> None:
        self._wanted = wanted
        self._code = code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        assert error is not None, f"no {self._wanted.__name__} was raised"
        if not isinstance(error, self._wanted):
            return False
        self.error = error
        code = error.code if isinstance(error, PerdureError) else None
        assert self._code in (None, code), f"the error's code is {code!r}, not {self._code!r}: {error}"
        return True


def raises(wanted: type[E], code: str | None = None) -> Raises[E]:
    """The `with` block must end with this error, and this code where one is given."""
    return Raises(wanted, code)

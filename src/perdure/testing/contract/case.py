"""What a contract test is made of. Used by every file of the suite; collected by `suite`.

A contract test is a function `test_…(rig)` with plain asserts, so that pytest and the command line run the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

from perdure.errors import PerdureError
from perdure.job.model import Failure
from perdure.testing.contract.rig import Rig

P = ParamSpec("P")
E = TypeVar("E", bound=BaseException)

_VALUES = "__contract_values__"


class Case(NamedTuple):
    """One test of the suite: `group` is the protocol, `name` the sentence."""

    group: str
    name: str
    test: Callable[..., None]
    values: tuple[Any, ...] = ()

    def run(self, rig: Rig) -> None:
        """Run the test to its end; raises what it raises. The rig is the caller's to open and close."""
        self.test(rig, *self.values)

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


def each(*values: object) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """One case per value, which the test takes after the rig; a tuple stands for several arguments."""

    def mark(test: Callable[P, None]) -> Callable[P, None]:
        setattr(test, _VALUES, values)
        return test

    return mark


def cases_of(group: str, functions: Iterable[tuple[str, Callable[..., None]]]) -> list[Case]:
    """The cases of one file, in the order of its text."""
    found: list[Case] = []
    for name, test in functions:
        sentence = name.removeprefix("test_").replace("_", " ")
        values: tuple[object, ...] | None = getattr(test, _VALUES, None)
        if values is None:
            found.append(Case(group, sentence, test))
            continue
        for value in values:
            arguments: tuple[Any, ...] = value if type(value) is tuple else (value,)
            shown = ", ".join(map(_shown, arguments))
            found.append(Case(group, f"{sentence} ({shown})", test, arguments))
    return found


def _shown(value: object) -> str:
    """A value in a few words: named tuples without what they leave at nothing, long or unprintable text cut short."""
    if isinstance(value, Failure):
        return value.message
    if isinstance(value, tuple):
        parts = [_shown(part) for part in cast("tuple[object, ...]", value) if part not in (None, 0, "")]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, str):
        return value if value.isprintable() and value.isascii() and 0 < len(value) <= 30 else ascii(value)[:30]
    return str(value)


class Raised(Generic[E]):
    """The error a block ended with; there once the block has ended."""

    error: E


@contextmanager
def raises(wanted: type[E], code: str | None = None) -> Generator[Raised[E], None, None]:
    """The block must end with this error, and this code where one is given."""
    raised: Raised[E] = Raised()
    try:
        yield raised
    except wanted as error:
        raised.error = error
        found = error.code if isinstance(error, PerdureError) else None
        assert code is None or found == code, f"the error's code is {found!r}, not {code!r}: {error}"
        return
    raise AssertionError(f"no {wanted.__name__} was raised")

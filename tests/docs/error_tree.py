"""What the source says about errors: the classes, and which of them carries which code. Asked by `errors_page`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import perdure
from perdure import errors
from perdure.errors import PerdureError

PACKAGE = Path(perdure.__file__).parent


def tree() -> str:
    """The tree as drawn at the top of perdure/errors.py."""
    lines = (errors.__doc__ or "").splitlines()
    first = lines.index("PerdureError")
    return "\n".join(lines[first : lines.index("", first)])


@cache
def codes() -> dict[str, set[str]]:
    """Every code that is written down in the package, and the classes it is seen to be raised with.

    Private classes are shown as the public one they derive from. No class: the code is chosen before the raise. The
    root's own code is left out: nobody raises it.
    """
    modules = [ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py") if _is_ours(path)]
    public = _public_classes(modules)
    found: dict[str, set[str]] = {}
    for code, name in (pair for module in modules for pair in _written_in(module, set(public))):
        found.setdefault(code, set()).add(public[name])
    for code in (code for module in modules for node in ast.walk(module) for code in _named(node)):
        found.setdefault(code, set())
    found.pop(PerdureError.default_code)
    return found


def _is_ours(path: Path) -> bool:
    """The contract suite makes errors of its own; users of the test kit meet those of `testing` itself."""
    return "contract" not in path.parts


def _public_classes(modules: list[ast.Module]) -> dict[str, str]:
    """Every error class of the package, and the public class it is caught as."""
    bases = {
        node.name: node.bases[0].id
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and node.bases and isinstance(node.bases[0], ast.Name)
    }
    public = {name: name for name, value in vars(errors).items() if _is_error(value)}
    while more := {name: public[base] for name, base in bases.items() if name not in public and base in public}:
        public |= more
    return public


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, PerdureError)


def _written_in(module: ast.Module, classes: set[str]) -> Iterator[tuple[str, str]]:
    """Codes beside their class: `Class(…, code="…")`, `check_name(…, code="…", error=Class)` and the like, a class's
    default, or `(Class, "…")` in a driver's table."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in classes:
                yield from ((code, name) for word in keywords if word.arg == "code" for code in _text(word.value))
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if name.startswith("check_") or name == "refused":
                given = {word.arg: word.value for word in keywords}
                raised = given.get("error", ast.Name("InvalidOption"))
                if "code" in given and isinstance(raised, ast.Name):
                    yield from ((code, raised.id) for code in _text(given["code"]))
            case ast.ClassDef(name=name, body=body) if name in classes:
                yield from ((code, name) for line in body for code in _default(line))
            case ast.Tuple(elts=[ast.Name(id=name), second, *_]) if name in classes:
                yield from ((code, name) for code in _text(second))


def _default(line: ast.stmt) -> Iterator[str]:
    match line:
        case ast.Assign(targets=[ast.Name(id="default_code")], value=value):
            yield from _text(value)
        case ast.AnnAssign(target=ast.Name(id="default_code"), value=ast.expr() as value):
            yield from _text(value)


def _named(node: ast.AST) -> Iterator[str]:
    """Codes given to a variable or by default: `code = "…"`, `code, advice = "…", "…"`, `def f(*, code="…")`."""
    match node:
        case ast.arguments(kwonlyargs=words, kw_defaults=values):
            given = [value for word, value in zip(words, values, strict=True) if word.arg == "code"]
            yield from (code for value in given if value is not None for code in _text(value))
        case ast.Assign(targets=[ast.Name(id="code")], value=value):
            yield from _text(value)
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id="code"), *_])], value=ast.Tuple(elts=[value, *_])):
            yield from _text(value)


def _text(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=other):
            yield from _text(body)
            yield from _text(other)

"""For the reference: what `@lazy` makes is read like a property, so it is shown as one, not as something to call."""

from __future__ import annotations

from typing import Any

import griffe


class LazyAttributes(griffe.Extension):
    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Function) and any(str(one.value) == "lazy" for one in member.decorators):
                cls.set_member(name, _attribute(member))


def _attribute(function: griffe.Function) -> griffe.Attribute:
    made = griffe.Attribute(
        function.name,
        annotation=function.returns,
        docstring=function.docstring,
        lineno=function.lineno,
        endlineno=function.endlineno,
    )
    made.labels.add("property")
    return made

"""Templates: jobs to be enqueued under a name, with every version they ever had. Called by `templates` through `store`.

A version is written once and never changed, so a job's template can be seen as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from perdure.clock import Micros
from perdure.errors import PerdureError, Remedy, TemplateError
from perdure.job.model import json_of, readable
from perdure.store.engine import RELEASE, ROLLBACK_TO, SAVEPOINT, Call, Op, Serialization, UniqueViolation
from perdure.store.rows import NewTemplate, TemplateRow

Found = TemplateRow | PerdureError | None


def put_template(new: NewTemplate, now: Micros, expect_version: int | None = None) -> Op[Found]:
    """Write it as a new template, or as the next version of the one with this name; the same again changes nothing."""
    if expect_version is None:
        made = yield Call("insert_template", {"id": new.id, "name": new.name, "now": now})
        if made.changed:
            yield from _insert_version(new, new.id, 1, now)
            return (yield from template(new.name))
    current = yield from _locked(new.name)
    if current is None:
        return None
    if current.archived_at is not None:
        return archived(new.name)
    if _is_same(current, new):
        return current
    if expect_version not in (None, current.latest):
        return TemplateError(
            f"template {new.name!r} is at version {current.latest}, not {expect_version}: someone changed it; read it"
            " again and decide again",
            code="version_changed",
        )
    yield from _next_version(new, current, now)
    return (yield from template(new.name))


def archived(name: str) -> TemplateError:
    return TemplateError(
        f"template {name!r} is archived",
        code="template_archived",
        remedy=Remedy("restore it first, or use another", "perdure templates restore uses it again"),
    )


def _next_version(new: NewTemplate, current: TemplateRow, now: Micros) -> Op[None]:
    version = current.latest + 1
    known = {"template_id": current.id, "expected": current.latest}
    if not (yield Call("set_template_version", known | {"version": version, "now": now})).changed:
        raise Serialization("the template changed between reading and writing it; the operation runs again")
    yield from _insert_version(new, current.id, version, now)


def _insert_version(new: NewTemplate, template_id: bytes, version: int, now: Micros) -> Op[None]:
    written = new._asdict() | {"template_id": template_id, "version": version, "now": now}
    yield Call("insert_template_version", written)


def _is_same(current: TemplateRow, new: NewTemplate) -> bool:
    """Whether nothing would change. The order of arguments does not count; 1 and true are different."""
    if (current.kind, current.kind_version, current.description) != (new.kind, new.kind_version, new.description):
        return False
    try:
        return all(_sorted(getattr(current, name)) == _sorted(getattr(new, name)) for name in _JSON)
    except ValueError:
        return False  # another program has damaged the row: the next version is whole again


def _sorted(text: str | None) -> str:
    return json.dumps(json_of(text), sort_keys=True)


_JSON = ("payload", "secrets", "plan")


def archive_template(name: str, archived_at: Micros | None, now: Micros) -> Op[Found]:
    """Set it aside, or with None restore it. A repeat keeps the first time."""
    current = yield from _locked(name)
    if current is None or (current.archived_at is None) == (archived_at is None):
        return current
    yield Call("set_template_archived", {"archived_at": archived_at, "now": now, "template_id": current.id})
    return (yield from template(name))


def rename_template(name: str, new_name: str, now: Micros) -> Op[Found]:
    """Another name for the same template: its versions and jobs stay its own."""
    current = yield from _locked(name)
    if current is None or name == new_name:
        return current
    yield SAVEPOINT
    is_taken = False
    try:
        yield Call("rename_template", {"new_name": new_name, "now": now, "template_id": current.id})
    except UniqueViolation:
        is_taken = True
        yield ROLLBACK_TO
    yield RELEASE
    if is_taken:
        return TemplateError(
            f"cannot rename template {name!r}: there is one called {new_name!r}, perhaps archived; choose another name",
            code="template_taken",
        )
    return (yield from template(new_name))


def _locked(name: str) -> Op[TemplateRow | None]:
    """The newest version; nobody else changes the template until the transaction ends."""
    if not (yield Call("lock_template", {"name": name})).rows:
        return None
    return (yield from template(name))


def template(name: str, version: int | None = None) -> Op[TemplateRow | None]:
    """As it is now, or as it was at this version. None: there is none."""
    return _one((yield Call("read_template", {"name": name, "version": version})).rows)


def template_by_id(template_id: bytes, version: int | None = None) -> Op[TemplateRow | None]:
    """The same, whatever its name is now."""
    return _one((yield Call("read_template_by_id", {"template_id": template_id, "version": version})).rows)


def templates() -> Op[list[TemplateRow]]:
    """Every template at its newest version, by name."""
    return _all((yield Call("list_templates")).rows)


def template_versions(name: str) -> Op[list[TemplateRow]]:
    """Every version of one template, the newest first. Empty: there is no such template."""
    return _all((yield Call("list_template_versions", {"name": name})).rows)


def _one(rows: Sequence[Sequence[object]]) -> TemplateRow | None:
    return _all(rows)[0] if rows else None


def _all(rows: Sequence[Sequence[object]]) -> list[TemplateRow]:
    return [readable(TemplateRow, row)[0] for row in rows]

"""`app.templates`: jobs to be enqueued under a name. Checks them against their kinds, and calls the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast
from uuid import UUID

from perdure.checks import check_name, check_type, check_whole
from perdure.clock import Micros, to_datetime
from perdure.errors import InvalidOption, KindError, PerdureError, Remedy, TemplateError, shown
from perdure.ids import to_uuid
from perdure.job.model import NewJob, Origin, Plan, json_of, plan_json, plan_of, priority_of
from perdure.job.retry import Retry
from perdure.job.views import Job
from perdure.kind import Draft, Kind
from perdure.options import OptionFields, Options, for_a_job
from perdure.store.rows import NewTemplate, TemplateRow
from perdure.store.template import archived
from perdure.worker.lifecycle import log_enqueued, log_template

if TYPE_CHECKING:
    from perdure.app import JobLike, Perdure
    from perdure.store.protocols import Store

DESCRIPTION_LIMIT = 1000
OF_ONE_JOB = ("tx", "idempotency_key", "business_key", "unique", "delay", "run_at", "after", "on")
"""The options that a template cannot have; `enqueue` takes them."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template as it was when it was read, at one of its versions. It does not hold secret arguments."""

    id: UUID
    name: str
    version: int
    latest: int
    """The newest version."""
    kind: str
    kind_version: int
    payload: dict[str, Any]
    """The arguments that it gives, without secret ones."""
    secrets: tuple[str, ...]
    """The names of the secret arguments that it gives."""
    queue: str
    priority: int
    tags: tuple[str, ...]
    params: dict[str, Any]
    principal: str | None
    max_attempts: int
    timeout: timedelta | None
    description: str | None
    created_at: datetime
    written_at: datetime
    """When this version was written."""
    archived_at: datetime | None
    problem: str | None = None
    """Why it cannot be used: another program has changed its row. None: all is well."""

    @property
    def archived(self) -> bool:
        return self.archived_at is not None


class Templates:
    """Put, look at, enqueue and archive templates."""

    def __init__(self, app: Perdure) -> None:
        self._app = app

    def put(
        self,
        name: str,
        kind: str,
        payload: Mapping[str, Any] | None = None,
        *,
        description: str | None = None,
        expect_version: int | None = None,
        **options: Unpack[OptionFields],
    ) -> Template:
        """Make a template of this name, or its next version; the same again changes nothing.

        `payload` is any part of the kind's arguments, checked as far as given. Options that are not given are those of
        the kind as they are now. With `expect_version`, TemplateError if the template is not at that version.
        """
        app = self._app
        if expect_version is not None:
            check_whole(expect_version, "expect_version", code="version_invalid")
        found = app.kinds.get(kind)
        new = _new(found, app.ids.new(), _checked(name), payload, description, options)
        now = app.clock.now()
        return self._told("put", app.store.put_template(new, now, expect_version), name, now)

    def get(self, name: str, version: int | None = None) -> Template:
        """The template as it is, or as it was at this version. TemplateError: there is none."""
        if version is not None:
            check_whole(version, "version", code="version_invalid")
        row = self._app.store.template(_checked(name), version)
        return _template(_found(self._app, row, name, version))

    def list(self, *, archived: bool = False) -> list[Template]:
        """Every template at its newest version, by name; with `archived`, the archived ones too."""
        return [_template(row) for row in self._app.store.templates() if archived or row.archived_at is None]

    def versions(self, name: str) -> Sequence[Template]:
        """Every version of a template, the newest first."""
        rows = self._app.store.template_versions(_checked(name))
        _found(self._app, rows[0] if rows else None, name)
        return [_template(row) for row in rows]

    def of(self, job: JobLike) -> Template | None:
        """The template that a job was made from, as it was then, under its name of today. None: it was made without."""
        row = self._app.existing(job).row
        if row.template_id is None or row.template_version is None:
            return None
        found = self._app.store.template_by_id(row.template_id, row.template_version)
        return None if found is None else _template(found)

    def archive(self, name: str) -> Template:
        """Set a template aside: it cannot be enqueued or changed any more. A repeat changes nothing."""
        now = self._app.clock.now()
        return self._told("archive", self._app.store.archive_template(_checked(name), now, now), name, now)

    def restore(self, name: str) -> Template:
        """Use an archived template again. A repeat changes nothing."""
        now = self._app.clock.now()
        return self._told("restore", self._app.store.archive_template(_checked(name), None, now), name, now)

    def rename(self, name: str, new_name: str) -> Template:
        """Give a template another name. Its jobs, and schedules that use it, stay its own."""
        check_name(new_name, "the template's new name")
        now = self._app.clock.now()
        return self._told("rename", self._app.store.rename_template(_checked(name), new_name, now), name, now)

    def enqueue(self, name: str, overrides: Mapping[str, Any] | None = None, **options: Unpack[OptionFields]) -> Job:
        """Enqueue a job made from a template, with some arguments and options given anew.

        The job keeps the template's id and version: what is changed later does not touch it.
        """
        tx = options.get("tx")
        store = self._app.store_of(tx)
        new = job_from_template(self._app, name, overrides, options, store)
        jobs = store.enqueue([new])
        log_enqueued(jobs)
        return jobs[0]

    def _told(self, verb: str, row: TemplateRow | None, name: str, now: Micros) -> Template:
        """The template after a change, which is logged if there was one."""
        changed = _found(self._app, row, name)
        if changed.updated_at == now:
            log_template(verb, changed.name, changed.latest, in_transaction=self._app.store.in_transaction)
        return _template(changed)


def job_from_template(
    app: Perdure, name: str, overrides: Mapping[str, Any] | None, options: OptionFields, store: Store
) -> NewJob:
    """The job that `enqueue` would insert; nothing is written."""
    row = _found(app, store.template(_checked(name)), name)
    if row.archived_at is not None:
        raise archived(name)
    [new] = app.new_jobs([_draft(app, row, overrides, options)])
    return new._replace(origin=Origin(row.id, row.version))


def _found(app: Perdure, row: TemplateRow | None, name: str, version: int | None = None) -> TemplateRow:
    """The row, or the error that there is none."""
    if row is not None:
        return row
    from difflib import get_close_matches

    known = {each.name: each.latest for each in app.store.templates()}
    if name in known:
        why = f"template {name!r} has no version {version}; its newest is {known[name]}"
        raise TemplateError(why, code="template_unknown")
    near = get_close_matches(name, list(known), n=1)
    meant = f"did you mean {near[0]!r}?" if near else None
    remedy = Remedy(meant or "app.templates.put makes one", meant or "perdure templates put makes one")
    raise TemplateError(f"there is no template {shown(name)}", code="template_unknown", remedy=remedy)


def _checked(name: object) -> str:
    return check_name(name, "the template's name")


def _new(
    kind: Kind[..., Any, ..., Any],
    new_id: bytes,
    name: str,
    payload: Mapping[str, Any] | None,
    description: str | None,
    options: OptionFields,
) -> NewTemplate:
    """The template to write, checked against its kind."""
    for option in OF_ONE_JOB:
        if options.get(option) is not None:
            raise InvalidOption(
                f"{option}= belongs to a single job, not to a template; pass it to app.templates.enqueue",
                code="option_invalid",
            )
    text = None if description in (None, "") else check_name(description, "description", DESCRIPTION_LIMIT)
    plan = kind.defaults.changed(for_a_job(options)).plan(kind.names, kind.version, kind.app.owner)
    encoded = kind.codec.part.encode({} if payload is None else payload)
    return NewTemplate(new_id, name, kind.name, kind.version, *encoded, plan_json(plan), text)


def _draft(app: Perdure, row: TemplateRow, overrides: Mapping[str, Any] | None, options: OptionFields) -> Draft:
    """The job that the template describes, with these changes. Its arguments as a whole are checked later."""
    kind = app.kinds.find(row.kind)
    if kind is None:
        raise KindError(
            f"template {row.name!r} makes jobs of kind {row.kind!r}, which this process does not declare, and nothing"
            " else can check their arguments; import the module that declares it first",
            code="kind_unknown",
        )
    check_type(overrides, "overrides", Mapping | None, "a dict of arguments by name", code="input_invalid")
    arguments = _arguments(kind, row) | dict(overrides or {})
    wanted = _options(row, kind.defaults).changed(for_a_job(options))
    return Draft(kind, arguments, wanted, wanted.plan(kind.names, kind.version, app.owner))


def _damaged(row: TemplateRow, error: Exception) -> TemplateError:
    return TemplateError(
        f"template {row.name!r} cannot be read at version {row.version} ({error}): another program has changed it; put"
        " it again",
        code="template_invalid",
    )


def _arguments(kind: Kind[..., Any, ..., Any], row: TemplateRow) -> dict[str, object]:
    """The arguments that the template gives, as this version of its kind takes them."""
    what = f"template {row.name!r} was put for version {row.kind_version} of kind {kind.name!r}"
    if row.kind_version > kind.version:
        raise TemplateError(f"{what}, and this process has version {kind.version}; enqueue it where the newer code is")
    try:
        is_old = row.kind_version < kind.version and kind.upgrades
        payload = kind.upgraded(row.payload, row.kind_version) if is_old else row.payload
        return kind.codec.part.values(payload, row.secrets)
    except PerdureError as error:
        raise TemplateError(f"{what}, and its arguments no longer fit: {error.message} Put it again.") from error
    except Exception as error:
        raise TemplateError(
            f"{what}, and its arguments cannot be upgraded to version {kind.version} ({type(error).__name__}: {error});"
            " put it again"
        ) from error


def _options(row: TemplateRow, defaults: Options) -> Options:
    """The options that the template had when it was put; those that a template cannot have are the kind's."""
    try:
        return replace(defaults, **_kept(plan_of(row.plan), defaults.policy))
    except _UNREADABLE as error:
        raise _damaged(row, error) from None


def _kept(plan: Plan, own: Retry) -> dict[str, Any]:
    retry = _object(plan.options).get("retry")
    fixed = replace(own, max_attempts=plan.max_attempts, as_new_job=bool(plan.as_new_job))
    return {
        "queue": plan.queue,
        "priority": priority_of(plan.rank),
        "tags": plan.tags,
        "params": None if plan.params is None else _object(plan.params),
        "principal": plan.principal,
        "timeout": _span(plan.timeout_ms),
        "conflict": plan.conflict,
        "retry": fixed if retry is None else Retry.from_json(retry).counting(own),
    }


def _span(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _template(row: TemplateRow) -> Template:
    try:
        return _shown(row, plan_of(row.plan))
    except _UNREADABLE as error:
        return _shown(row._replace(payload="{}", secrets=None), _NO_PLAN, _damaged(row, error).message)


def _shown(row: TemplateRow, plan: Plan, problem: str | None = None) -> Template:
    return Template(
        id=to_uuid(row.id),
        name=row.name,
        version=row.version,
        latest=row.latest,
        kind=row.kind,
        kind_version=row.kind_version,
        payload=_object(row.payload),
        secrets=tuple(_object(row.secrets)),
        queue=plan.queue,
        priority=priority_of(plan.rank),
        tags=plan.tags,
        params=_object(plan.params),
        principal=plan.principal,
        max_attempts=plan.max_attempts,
        timeout=_span(plan.timeout_ms),
        description=row.description,
        created_at=to_datetime(row.created_at),
        written_at=to_datetime(row.written_at),
        archived_at=None if row.archived_at is None else to_datetime(row.archived_at),
        problem=problem,
    )


def _object(text: str | None) -> dict[str, Any]:
    read = json_of("{}" if text is None else text)
    if not isinstance(read, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as if it were not JSON at all
    return cast("dict[str, Any]", read)


_NO_PLAN = Options().plan(("",), 1, "")
_UNREADABLE = (TypeError, ValueError, AttributeError, ArithmeticError)
"""What a value that another program wrote may raise when it is read."""

"""Makes a new job from a draft (arguments checked, keys derived, times fixed), or an edited job from changes. Called
by `app` and the worker; writes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, cast

from perdure.checks import KEY_LIMIT, Span, check_known, check_name
from perdure.clock import Micros
from perdure.errors import InvalidInput, InvalidOption, InvalidPayload, Problem, TransitionRefused
from perdure.flow.planned import MOST_REFERENCES, references_in, refers, tree_of
from perdure.ids import JobId
from perdure.job.model import JobRow, NewJob, Plan
from perdure.job.references import refs_text, waiting_for
from perdure.job.states import State
from perdure.job.transitions import waiting_state
from perdure.job.views import Job
from perdure.kind import Draft, Kind, no_draft
from perdure.limit.key import keys_of, name_of
from perdure.limit.rule import is_fixed, needs, needs_anew
from perdure.options import Options, Unique, principal
from perdure.payload.signature import MISSING
from perdure.store.rows import Edit

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.store.protocols import Store


def common_tx(drafts: Sequence[object], tx: Any) -> Any:
    """The one transaction for these drafts: the one given, or the one in their options."""
    for draft in drafts:
        if not isinstance(draft, Draft):
            raise no_draft(draft)
        wanted = draft.options.tx
        if wanted is not None and tx is not None and wanted is not tx:
            raise InvalidOption(
                "these jobs were given different tx=; give all the same one: jobs that are enqueued together share a"
                " transaction",
                code="tx_mixed",
            )
        tx = wanted if wanted is not None else tx
    return tx


def listed_drafts(drafts: object, others: Sequence[object]) -> list[Any]:
    """The members of a group. InvalidInput: they were given one by one, or are no list at all."""
    given: Sequence[object] = (drafts, *others)
    if isinstance(drafts, Draft) or others:
        named = list(map(_as_written, given))
        raise InvalidInput(
            f"a group takes its jobs as one list; write app.group([{', '.join(named[:_NAMED])}"
            f"{', …' if len(named) > _NAMED else ''}])",
            code="draft_invalid",
        )
    if isinstance(drafts, (Kind, Mapping)) or not isinstance(drafts, Iterable):
        raise no_draft(drafts)  # pyright: ignore[reportUnknownArgumentType]
    return list(cast("Iterable[Any]", drafts))  # type: ignore[redundant-cast]  # for pyright


def _as_written(draft: object) -> str:
    return f"{draft.kind.name}.new(…)" if isinstance(draft, Draft) else "…"


_NAMED = 3


def new_job(
    kind: Kind[..., Any, ..., Any],
    arguments: Mapping[str, Any],
    options: Options,
    plan: Plan,
    job_id: JobId,
    now: Micros,
) -> NewJob:
    """The job of a draft (`new_job(*draft, id, now)`). Raises InvalidPayload or InvalidOption."""
    refs = None
    try:
        payload, secrets = kind.codec.encode(arguments)
    except InvalidPayload:
        if not refers(arguments):
            raise
        payload, secrets, refs = _encoded_in_part(kind, arguments)
    asker = principal.get()
    if plan.direct and asker is None and refs is None:
        return NewJob(job_id, plan, payload, secrets, now, now, _QUEUED)
    if plan.principal is None and asker is not None:
        plan = plan._replace(principal=check_name(asker, "principal", KEY_LIMIT), plain=False, direct=False)
    if options.rules:
        plan = limited(plan, options, payload)
    run_at = options.start_at(now)
    state = _SCHEDULED if run_at > now else (_QUEUED if plan.limit_key is None else _HELD)
    new = NewJob(job_id, plan, payload, secrets, now, run_at, state)
    if refs is not None or options.edges:
        new = waiting_for(new, options.edges, refs)
    if options.idempotency_key is None and options.business_key is None and options.unique is None:
        return new
    return _keyed(new, kind, options)


def _encoded_in_part(kind: Kind[..., Any, ..., Any], arguments: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """Arguments of which some are references: the others as they are stored, and the references.

    Those are validated when the job runs.
    """
    referring = {name: value for name, value in arguments.items() if refers(value)}
    signature = kind.codec.signature
    missing = [Problem(repr(name), MISSING) for name in sorted(signature.required.difference(arguments))]
    if problems := [*missing, *signature.unknown(referring)]:
        raise signature.refusal(problems)
    if (many := sum(1 for _ in references_in(list(referring.values())))) > MOST_REFERENCES:
        raise InvalidPayload(
            f"a {kind.name} job would take {many:,} results as arguments, the limit is {MOST_REFERENCES:,}; put those"
            " jobs into a batch or group, and read them with ctx.results(…)",
            code="payload_too_large",
        )
    refs = refs_text({name: tree_of(value) for name, value in referring.items()}, None)
    assert refs is not None
    rest = {name: value for name, value in arguments.items() if name not in referring}
    payload, secrets = kind.codec.part.encode(rest)
    return payload, secrets, refs


_QUEUED, _HELD, _SCHEDULED = State.QUEUED.value, State.HELD.value, State.SCHEDULED.value


def limited(plan: Plan, options: Options, payload: str) -> Plan:
    """The plan of a job with these arguments: with the keys of its limits, where these depend on them."""
    return plan if is_fixed(options.rules) else plan._replace(limit_key=needs(options.rules, plan.kind, payload))


def _keyed(new: NewJob, kind: Kind[..., Any, ..., Any], options: Options) -> NewJob:
    """The same job with its keys: those given, and the one that `Unique` derives."""
    plan = new.plan
    idempotency_key, business_key = options.idempotency_key, options.business_key
    if options.unique is not None:
        derived = _derived_key(options.unique, plan, new.payload, new.secrets)
        if options.unique.until == "ever":
            idempotency_key = idempotency_key or derived
        else:
            business_key, plan = business_key or derived, plan._replace(conflict=options.unique.conflict)
    fingerprint = None
    if idempotency_key is not None:
        fingerprint = kind.codec.fingerprint(new.payload, new.secrets)
    return new._replace(plan=plan, idempotency_key=idempotency_key, business_key=business_key, fingerprint=fingerprint)


def _derived_key(unique: Unique, plan: Plan, payload: str, secrets: str | None) -> str:
    """The same text for the same arguments of the same kind; a digest, so that it is short and shows no secrets.

    It uses the oldest name of the kind: a release that knows only that name derives the same key.
    """
    kind = plan.names[-1]
    arguments: dict[str, Any] = json.loads(payload)
    if unique.names is None:
        if secrets is not None:
            arguments |= json.loads(secrets)
    else:
        arguments = {name: _argument(arguments, name, plan.kind) for name in unique.names}
    canonical = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return f"{kind}:{hashlib.sha256(canonical.encode()).hexdigest()}"


def _argument(arguments: dict[str, Any], name: str, kind: str) -> Any:
    if name not in arguments:
        raise InvalidOption(
            f"Unique(by={name!r}) on {kind!r}: this job was enqueued without that argument (or it is secret); pass it,"
            " or make the job unique by something else",
            code="unique_invalid",
        )
    return arguments[name]


class EditFields(TypedDict, total=False):
    """What `app.edit` can change, for type checkers."""

    payload: Mapping[str, Any]
    params: Mapping[str, Any] | None
    tags: Sequence[str]
    principal: str | None
    queue: str
    run_at: datetime | None
    delay: Span | None
    timeout: Span | None


EDITABLE = tuple(EditFields.__annotations__)


def edited(app: Perdure, job: Job, changes: EditFields, store: Store) -> Edit | None:
    """The rows after the changes, from the job as `store` sees it. None: nothing to change."""
    check_known(changes, EDITABLE)
    if not changes:
        return None
    row, live = store.row(job.row.id), store.live(job.row.id)
    if row is None or live is None:
        raise TransitionRefused(
            f"cannot edit job {job.id}: it has ended; enqueue another, or retry it as it was", code="edit_refused"
        )
    now = app.clock.now()
    options = Options(queue=live.queue).changed({name: value for name, value in changes.items() if name != "payload"})
    if "payload" in changes:
        kind = app.kinds.get(job.kind)
        payload, secrets = kind.codec.encode(changes["payload"])
        carried = None if row.limit_key is None else _limited_anew(app, kind, row, payload)
        row = row._replace(payload=payload, secrets=secrets, kind_version=kind.version, limit_key=carried)
    row = row._replace(
        params=options.params_json if "params" in changes else row.params,
        principal=options.principal if "principal" in changes else row.principal,
        options=_with_timeout(row.options, options.timeout_ms) if "timeout" in changes else row.options,
        queue=options.queue,
    )
    live = live._replace(
        queue=options.queue,
        kind_version=row.kind_version,
        run_at=options.start_at(now) if {"run_at", "delay"} & changes.keys() else live.run_at,
        timeout_ms=options.timeout_ms if "timeout" in changes else live.timeout_ms,
        limit_key=row.limit_key,
        held_by=None,
        updated_at=now,
        version=live.version + 1,
    )
    live = live._replace(state=waiting_state(live, now), park_reason=None)
    return Edit(row, live, tuple(options.tags) if "tags" in changes else job.tags)


def _limited_anew(app: Perdure, kind: Kind[..., Any, ..., Any], row: JobRow, payload: str) -> str | None:
    """By the rules of its kind, and by those that it was given with `.options(limit=…)`."""
    declared = [app.kinds.rule(name_of(key)) for key in keys_of(row.limit_key)]
    rules = [*kind.defaults.rules, *(rule for rule in declared if rule is not None and rule.name is not None)]
    return needs_anew(row.limit_key, rules, kind.name, kind.upgraded(row.payload, row.kind_version), payload)


def _with_timeout(stored: str | None, timeout_ms: int | None) -> str | None:
    """The stored options with the new time-out: a retry by hand reads it from there."""
    kept: dict[str, Any] = json.loads(stored) if stored else {}
    kept.pop("timeout_ms", None)
    if timeout_ms is not None:
        kept["timeout_ms"] = timeout_ms
    return json.dumps(kept, separators=(",", ":")) if kept else None

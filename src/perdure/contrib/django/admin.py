"""Jobs and runs in Django's admin: lists, a page for each job, and what can be done with jobs. Nothing can be edited.

The pages ask the app, as `manage.py perdure jobs` does, and never count: a list is as quick with millions of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.utils.html import format_html_join

from perdure.app import Perdure
from perdure.contrib.django.backend import app_of
from perdure.contrib.django.models import Job, Run
from perdure.errors import InvalidInput, InvalidPayload, PerdureError
from perdure.job.states import RunState, State
from perdure.options import principal
from perdure.text import counted


class KnownPages(Paginator):
    """The pages up to the one shown, and one more if there is one: how many there are in all is not counted."""

    def __init__(self, per_page: int, last: int) -> None:
        super().__init__((), per_page)
        self.num_pages = last


class UncountedList(ChangeList):
    """A page of what the app lists, the newest first."""

    def get_results(self, request: Any) -> None:
        self.page_num: int = max(1, self.page_num)
        filters = {spec.parameter_name: spec.value() for spec in self.filter_specs if spec.value()}
        found = self.model_admin.found(app_of(), self.query, filters)
        skipped = (self.page_num - 1) * self.list_per_page
        shown = list(islice(found, skipped, skipped + self.list_per_page + 1))
        has_more = len(shown) > self.list_per_page
        self.result_list = [self.model_admin.shown(one) for one in shown[: self.list_per_page]]
        self.result_count = len(self.result_list)
        self.full_result_count, self.show_full_result_count = None, False
        self.show_admin_actions, self.can_show_all = True, False
        self.paginator = KnownPages(self.list_per_page, self.page_num + has_more)
        self.multi_page = self.paginator.num_pages > 1


class StateFilter(admin.SimpleListFilter):
    """By state."""

    title = parameter_name = "state"
    states: type[State | RunState] = State

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(state.value, state.value) for state in self.states]

    def queryset(self, request: Any, queryset: Any) -> None:
        """`UncountedList` asks the app."""


class RunStateFilter(StateFilter):
    """The states of runs."""

    states = RunState


class KindFilter(StateFilter):
    """By kind: those that the tasks of this project declare."""

    title = parameter_name = "kind"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind.name, kind.name) for kind in app_of().kinds]


class ReadOnlyAdmin(admin.ModelAdmin):
    """Lists what the app has. Nobody may add, change or delete."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()

    def get_queryset(self, request: Any) -> Any:
        return self.model.objects.none()  # no database of Django's is asked

    def get_changelist(self, request: Any, **_: Any) -> type[ChangeList]:
        return UncountedList

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def shown(self, one: Any) -> Any:
        """As an instance of the model."""
        return self.model(**{field.attname: _readable(one, field.attname) for field in self.model._meta.fields})


def _readable(one: Any, name: str) -> Any:
    """A value that another program has damaged is shown as missing; `manage.py perdure doctor` finds it."""
    try:
        return getattr(one, name)
    except InvalidPayload:
        return None


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, with what can be done with them."""

    list_display = ("id", "kind", "queue", "state", "attempts", "created_at", "run_at", "finished_at", "error")
    list_filter = (StateFilter, KindFilter)
    search_fields = ("id",)
    search_help_text = "The whole id of a job"
    actions = ("retry", "cancel", "pause", "resume")
    readonly_fields = ("runs",)

    def found(self, app: Perdure, query: str, filters: dict[str, Any]) -> Iterator[Any]:
        if query:
            return iter([job] if (job := _job(app, query.strip())) is not None else [])
        return app.jobs(**filters)

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Job | None:
        job = _job(app_of(), object_id)
        return None if job is None else self.shown(job)

    @admin.display(description="runs")
    def runs(self, job: Job) -> str:
        lines = (
            (f"attempt {run.attempt}: {run.state}, {run.started_at:%Y-%m-%d %H:%M:%S}", run.traceback or "")
            for run in app_of().runs(job.id, limit=100)
        )
        return format_html_join("", "<p>{}</p><pre>{}</pre>", lines)

    def has_control_permission(self, request: Any) -> bool:
        return request.user.has_perm("perdure.control_job")

    @admin.action(description="Retry selected jobs", permissions=["control"])
    def retry(self, request: Any, queryset: Any) -> None:
        self._act(request, "retry")

    @admin.action(description="Cancel selected jobs", permissions=["control"])
    def cancel(self, request: Any, queryset: Any) -> None:
        self._act(request, "cancel")

    @admin.action(description="Pause selected jobs", permissions=["control"])
    def pause(self, request: Any, queryset: Any) -> None:
        self._act(request, "pause")

    @admin.action(description="Resume selected jobs", permissions=["control"])
    def resume(self, request: Any, queryset: Any) -> None:
        self._act(request, "resume")

    def _act(self, request: Any, verb: str) -> None:
        """Each job by itself: what one refuses does not keep the others from it. The log names the user."""
        app, done = app_of(), 0
        before = principal.set(request.user.get_username())
        try:
            for job_id in request.POST.getlist(ACTION_CHECKBOX_NAME):
                try:
                    getattr(app, verb)(job_id)
                    done += 1
                except PerdureError as error:
                    self.message_user(request, error.message, messages.ERROR)
        finally:
            principal.reset(before)
        if done:
            self.message_user(request, f"{verb.capitalize()}: {counted(done, 'job')}", messages.SUCCESS)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """Attempts."""

    list_display = ("kind", "job_id", "attempt", "state", "started_at", "duration_ms", "error_type", "error")
    list_display_links = None
    list_filter = (RunStateFilter, KindFilter)

    def found(self, app: Perdure, query: str, filters: dict[str, Any]) -> Iterator[Any]:
        return app.runs(**filters)


def _job(app: Perdure, job_id: str) -> Any:
    try:
        return app.get(job_id)
    except InvalidInput:
        return None

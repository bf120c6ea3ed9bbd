"""What users of Celery, RQ, Huey and others write, and what it is called here. Used for the hints of errors, by `kind`,
`app`, `options`, `payload`, `job/views`, `worker/context`, `contrib/django` and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

_WHEN = {"countdown": "delay=, in seconds", "eta": "run_at=, a datetime with a time zone"}
_RETRY = "retry=Retry(…), or the number of attempts"
_TIMEOUT = "timeout=, in seconds"

OPTIONS: Mapping[str, str] = {
    **_WHEN,
    "at": _WHEN["eta"],
    **dict.fromkeys(
        ("max_retries", "retries", "autoretry_for", "retry_backoff", "retry_delay", "retry_policy"), _RETRY
    ),
    **dict.fromkeys(("default_retry_delay", "min_backoff", "max_backoff", "retry_jitter"), _RETRY),
    **dict.fromkeys(("time_limit", "soft_time_limit", "job_timeout"), _TIMEOUT),
    **dict.fromkeys(("task_id", "job_id", "unique_key"), "idempotency_key="),
    **dict.fromkeys(("routing_key", "exchange", "queue_name"), "queue="),
    **dict.fromkeys(("meta", "headers"), "params=, a dict"),
    **dict.fromkeys(("link", "depends_on", "on_success"), "after=, on the job that comes next"),
    **dict.fromkeys(("link_error", "on_failure", "errback"), 'after= with on="failure", on the job that is told'),
    **dict.fromkeys(("chord", "group_id", "batch"), "app.batch(…) or app.workflow(…), to count jobs together"),
    "when": "after= here; conditions are for wf.add(…, when=…) in a workflow",
    **dict.fromkeys(("rate_limit", "throttle", "limiter"), "rate=Rate(100, per=60), for 100 in a minute"),
    **dict.fromkeys(("concurrency", "max_concurrency", "concurrency_limit", "max_running"), "limit=Limit(5)"),
    **dict.fromkeys(("result_ttl", "failure_ttl", "ttl", "result_expires"), "Perdure(retention=Retention(…))"),
    **dict.fromkeys(("bind", "context", "pass_context"), "ctx: JobContext as the first parameter of the function"),
    "expires": "raise Skip(…) in the handler, if it begins too late",
    "at_front": 'priority=, or app.move(job, to="front")',
    "acks_late": "nothing: a job whose worker dies is always taken over",
}
"""Options of a job: what to write instead."""

OF_A_KIND: Mapping[str, str] = {
    **dict.fromkeys(("delay", "send", "defer", "kiq", "push", "perform_async", "queue_call"), "{name}.enqueue(…)"),
    **dict.fromkeys(
        ("apply_async", "send_with_options", "configure", "using", "set"), "{name}.options(delay=…, queue=…).enqueue(…)"
    ),
    **dict.fromkeys(("schedule", "enqueue_in", "perform_in"), "{name}.options(delay=…).enqueue(…)"),
    **dict.fromkeys(("enqueue_at", "perform_at"), "{name}.options(run_at=…).enqueue(…)"),
    **dict.fromkeys(("s", "si", "signature", "subtask", "message"), "{name}.new(…), for app.enqueue_many([…])"),
    **dict.fromkeys(("apply", "call_local", "fn"), "{name}(…), which runs it here and now"),
    **dict.fromkeys(
        ("map", "starmap", "chunks"),
        "{name}.enqueue_many([{{…}}, {{…}}]), or wf.map({name}.new(…), over=values) in a workflow",
    ),
    **dict.fromkeys(("retry", "update_state", "request"), "ctx: JobContext as its first parameter, and ask that"),
    "AsyncResult": "app.get(id)",
}

OF_AN_APP: Mapping[str, str] = {
    **dict.fromkeys(("task", "actor", "tasks", "shared_task"), "@app.job"),
    **dict.fromkeys(("send_task", "enqueue_call", "defer", "apply_async"), 'app.enqueue("kind", {…})'),
    **dict.fromkeys(("enqueue_in", "enqueue_at"), 'app.enqueue("kind", {…}, delay=…) or run_at=…'),
    **dict.fromkeys(
        ("periodic_task", "add_periodic_task", "cron", "scheduled_job", "add_job"),
        '@app.schedule("0 7 * * *", name="daily") above @app.job',
    ),
    **dict.fromkeys(("AsyncResult", "fetch_job", "get_job"), "app.get(id), or app.wait(id)"),
    **dict.fromkeys(("start", "run", "worker_main", "run_worker", "Worker"), "app.worker().run()"),
    **dict.fromkeys(("revoke", "revoke_by_id", "abort"), "app.cancel(job)"),
    **dict.fromkeys(("autodiscover_tasks", "import_paths"), 'Perdure(…, imports=["shop.jobs"])'),
    **dict.fromkeys(("conf", "config_from_object"), "arguments of Perdure(…)"),
    "control": "app.cancel(job), app.queues.pause(name)",
    "signature": "kind.new(…)",
    **dict.fromkeys(("chord", "flow", "dag", "pipeline", "graph"), 'with app.workflow("name") as wf'),
    **dict.fromkeys(("map", "starmap", "chunks"), 'wf.map(kind.new(row=each), over=values) in app.workflow("name")'),
    **dict.fromkeys(("limit", "rate_limit"), "limit=Limit(…) or rate=Rate(…) in @app.job, or app.limits"),
    "empty": 'app.cancel_all(queue="…")',
}

OF_A_JOB: Mapping[str, str] = {
    **dict.fromkeys(("get", "wait", "get_result", "return_value", "latest_result", "collect"), "kind.wait(job)"),
    **dict.fromkeys(("refresh", "reload", "info", "get_status"), "app.get(job), which reads it anew"),
    **dict.fromkeys(("ready", "is_finished", "done"), "app.get(job).is_final"),
    **dict.fromkeys(("successful", "is_failed", "failed", "status"), "app.get(job).state"),
    **dict.fromkeys(("revoke", "cancel", "abort"), "app.cancel(job)"),
    **dict.fromkeys(("requeue", "retry"), "app.retry(job)"),
    **dict.fromkeys(("forget", "delete"), "app.delete(job)"),
    "exc_info": "app.runs(job), whose traceback",
}

OF_A_FLOW: Mapping[str, str] = {
    **dict.fromkeys(("get", "wait", "join", "collect"), "app.wait(flow), and app.flows.jobs(flow) for the results"),
    **dict.fromkeys(("jobs", "children", "results", "members"), "app.flows.jobs(flow)"),
    **dict.fromkeys(("refresh", "reload", "info"), "app.flows.get(flow), which reads it anew"),
    **dict.fromkeys(("ready", "is_finished", "done"), "app.flows.get(flow).is_final"),
    **dict.fromkeys(("successful", "status"), "app.flows.get(flow).state"),
    **dict.fromkeys(("revoke", "cancel", "abort"), "app.cancel(flow)"),
    **dict.fromkeys(("pause", "resume", "retry"), "app.pause(flow), app.resume(flow) or app.retry(flow)"),
    "completed_count": "app.flows.get(flow).completed",
    "graph": "app.flows.graph(flow)",
    "seal": "app.flows.seal(flow)",
}

ON_THE_COMMAND_LINE: Mapping[str, str] = {
    "--countdown": "--delay 10s",
    **dict.fromkeys(("--eta", "--at"), "--run-at 2026-01-31T12:00Z"),
    "--in": "--delay 10s",
    **dict.fromkeys(("--args", "--kwargs", "-a", "--arg"), "arguments as NAME=VALUE, or --payload JSON"),
    "--task-id": "--key KEY",
    "-A": "--app MODULE:APP",
    **dict.fromkeys(("-l", "--loglevel", "--logging-level"), "--log-level info"),
    **dict.fromkeys(("-v", "--verbose"), "--log-level debug, with perdure worker"),
    **dict.fromkeys(("-c", "-w", "-p", "--workers", "--processes", "--threads", "--num-workers"), "--concurrency N"),
    **dict.fromkeys(("-Q", "--queues"), "--queue NAME, once for each"),
    **dict.fromkeys(("-P", "--pool", "-k", "--worker-type"), 'isolation="process" in @app.job, for some kinds'),
    **dict.fromkeys(("-B", "--beat", "--with-scheduler", "-s"), "nothing: every worker runs schedules"),
    **dict.fromkeys(("-b", "--burst"), "--until-idle"),
    **dict.fromkeys(("--autoscale", "--max-tasks-per-child", "--max-jobs"), "--concurrency N, and more workers"),
    **dict.fromkeys(("--watch", "--autoreload"), "--reload"),
    **dict.fromkeys(("--db", "--database", "--dsn", "--broker", "--connection"), "--url URL"),
    **dict.fromkeys(("--status", "--states"), "--state failed,parked"),
    **dict.fromkeys(("--force", "--no-input"), "--yes"),
    **dict.fromkeys(("--count", "--lines", "--max", "--last"), "--limit N"),
    **dict.fromkeys(("--format", "--output", "-o"), "--json"),
    "--name": "--kind NAME",
    "--retries": "retry= in @app.job",
    "--timeout": "timeout= in @app.job",
}


OF_A_CONTEXT: Mapping[str, str] = {
    "retry": "raise RetryAfter(seconds), or let the error out",
    "request": "ctx.job_id, ctx.attempt and ctx.job",
    **dict.fromkeys(("update_state", "set_progress", "meta"), "ctx.progress(done, total, note)"),
    **dict.fromkeys(("is_aborted", "is_cancelled"), "ctx.should_stop, or ctx.checkpoint()"),
    "logger": "ctx.log",
}


_AFTER = "run_after=, a datetime such as timezone.now() + timedelta(seconds=10)"

OPTIONS_IN_DJANGO: Mapping[str, str] = {
    **OPTIONS,
    **dict.fromkeys(("countdown", "eta", "at", "delay", "run_at"), _AFTER),
    **dict.fromkeys(("queue", "routing_key", "exchange"), "queue_name="),
    **dict.fromkeys(("bind", "context", "pass_context"), "takes_context=True in @task"),
}
"""For `using` of a task of Django's, which names some of them otherwise."""

OF_A_DJANGO_TASK: Mapping[str, str] = {
    **dict.fromkeys(("delay", "send", "defer", "kiq", "push", "perform_async"), "{name}.enqueue(…)"),
    **dict.fromkeys(
        ("apply_async", "send_with_options", "configure", "options", "set"),
        "{name}.using(run_after=…, queue_name=…).enqueue(…)",
    ),
    **dict.fromkeys(("schedule", "enqueue_in", "enqueue_at"), "{name}.using(run_after=…).enqueue(…)"),
    **dict.fromkeys(("apply", "call_local"), "{name}.call(…), which runs it here and now"),
    **dict.fromkeys(("update_state", "request"), "perdure.current() in the function, and ask that"),
    "AsyncResult": "{name}.get_result(id)",
}


def refuse(what: object, name: str, words: Mapping[str, str], whose: str) -> NoReturn:
    """For `__getattr__`, which is asked for what is not there: says what to write, where other libraries have it.

    And for a property of ours that has failed with an AttributeError: it is asked again, for the sake of that error.
    """
    if hasattr(type(what), name):
        object.__getattribute__(what, name)
    if name in words:
        raise AttributeError(f"{whose} has no {name}; write {words[name]}", name=name)
    raise AttributeError(f"{type(what).__name__!r} object has no attribute {name!r}", name=name, obj=what)

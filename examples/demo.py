"""What Perdure does, in a few seconds and on a file that is gone afterwards. Run by `make demo`.

Five jobs are enqueued, and a sixth by one of them; a worker runs them: a coroutine, functions in threads, and one in a
process of its own. One fails and is tried again, one fails for good. Then what the database knows of them is printed.
"""

import asyncio
import os
import tempfile
from pathlib import Path

from perdure import Fail, Job, JobContext, Perdure, Retry
from perdure.ops.doctor import examine, is_healthy

app = Perdure()  # which file is said below; nothing is opened until the first job


@app.job(retry=Retry(3, base=0.5))
def send(ctx: JobContext, to: str, subject: str = "hi") -> str:
    if to == "nobody":
        raise Fail("no such address")
    if to == "bob" and ctx.attempt == 1:
        raise ConnectionError("the mail server is busy")
    ctx.log.info("sent %r to %s at attempt %d", subject, to, ctx.attempt)
    return f"sent to {to}"


@app.job
async def fetch(ctx: JobContext, pages: int) -> int:
    for page in range(pages):
        await asyncio.sleep(0.01)
        ctx.progress(page + 1, pages)
    ctx.enqueue(count, "it was a bright cold day in april")  # there if, and only if, this job completes
    return pages


@app.job(isolation="process", priority=5)
def count(ctx: JobContext, text: str) -> int:
    ctx.log.info("counting in process %d", os.getpid())
    return len(text.split())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder:
        app.url = Path(folder) / "jobs.db"
        try:
            jobs = enqueue()
            run(jobs)
            show()
        finally:
            app.close()


def enqueue() -> list[Job]:
    jobs = [send.enqueue(to="ann"), send.enqueue(to="bob"), send.enqueue(to="nobody"), fetch.enqueue(pages=20)]
    first, again = (send.options(idempotency_key="order-17").enqueue(to="cy") for _ in range(2))
    print(f"enqueued  {len(jobs) + 1} jobs; the same key again answered the same job: {first.id == again.id}")
    return [*jobs, first]


def run(jobs: list[Job]) -> None:
    with app.worker().running() as worker:
        print(f"worker    node {worker.health().node_id} in process {os.getpid()}")
        for job in jobs:
            app.wait(job, timeout=30)
        for job in app.jobs(kind="count"):
            app.wait(job, timeout=30)
    print("stopped   the worker has signed off\n")


def show() -> None:
    for job in sorted(app.jobs(), key=lambda job: job.id):
        print(f"{job.kind:<6} {job.state:<10} {job.error or job.result}")
        for attempt in sorted(app.runs(job), key=lambda run: run.attempt):
            why = f"  {attempt.error_type}: {attempt.error_message}" if attempt.error_type else ""
            print(f"       attempt {attempt.attempt} {attempt.state} after {attempt.duration_ms} ms{why}")
        for line in app.logs(job):
            print(f"       log: {line.message}")
    findings = examine(app.store)
    print(f"\ndoctor    {'healthy' if is_healthy(findings) else findings}")
    print("next      README.md, docs/handlers.md, and `perdure worker module:app` for a worker of your own")


if __name__ == "__main__":
    main()

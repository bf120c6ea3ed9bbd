"""What Perdure does so far, on a fresh file: enqueue, claim, finish, and look at what happened. Run by `make demo`.

The worker that claims and runs jobs by itself comes next; here its two calls are made by hand.
"""

import tempfile
from pathlib import Path

from perdure import Perdure
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Failure
from perdure.job.reports import Completed, Failed, Finish, Report
from perdure.store.answers import Claimer, Lane, Process


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = Perdure(Path(folder) / "jobs.db")

        @app.job(queue="mail", retry=2)
        def send(to: str, subject: str = "hi") -> str:
            if to == "nobody":
                raise ValueError("no such address")
            return f"sent {subject!r} to {to}"

        print("enqueue   three jobs, one of them first, one of them twice under the same key")
        send.enqueue(to="ann")
        first = send.options(priority=5).enqueue(to="bob", subject="urgent")
        send.options(idempotency_key="order-17").enqueue(to="nobody")
        again = send.options(idempotency_key="order-17").enqueue(to="nobody")
        print(f"          deduplicated: {again.deduplicated}; {first.id} goes first")

        node = NodeId(app.ids.new())
        app.store.register(node, None, Process(), app.clock.now())
        claimer = Claimer(node, app.kinds.versions(), [RunId(i) for i in app.ids.new_many(10)], 60_000_000)
        claims = app.store.claim([Lane("mail", 10)], claimer, app.clock.now())
        print(f"claim     {len(claims)} jobs, in queue order, a run opened for each")

        reports: list[Finish] = []
        for claim in claims:
            args, kwargs = send.load(claim.payload, claim.secrets, claim.live.kind_version)
            report: Report
            try:
                report = Completed(send.codec.encode_result(send(*args, **kwargs)))
            except ValueError as error:
                report = Failed(Failure("ValueError", str(error)), delay_us=10_000_000)
            reports.append(Finish(claim.live, report, JobId(app.ids.new())))
        finished = app.store.finish(reports, app.clock.now())
        print(f"finish    {', '.join(str(one.state) for one in finished)}\n")

        for job in app.jobs():
            when = "" if job.is_final else f", next attempt at {job.run_at:%H:%M:%S}"
            outcome = job.result if job.error is None else job.error
            print(f"{str(job.id)[-12:]}  {job.state:<10} priority {job.priority}  {outcome}{when}")
        for run in app.runs():
            print(f"{str(run.job_id)[-12:]}  run {run.state:<10} attempt {run.attempt}  {run.error_message or ''}")
        app.close()


if __name__ == "__main__":
    main()

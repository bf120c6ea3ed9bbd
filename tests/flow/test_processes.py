"""Flows whose jobs run in processes of their own: results go in, new members come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from perdure import JobContext, Perdure

app = Perdure("jobs.db")


@app.job(isolation="process")
def double(n: int) -> int:
    return 2 * n


@app.job(isolation="process")
def find(ctx: JobContext, n: int) -> int:
    ctx.flow.add(double.new(100), after=ctx.job_id)
    return ctx.flow["more"].add_many(double.new(i) for i in range(n))


@app.job(isolation="process")
def total(ctx: JobContext, first: int) -> int:
    return first + sum(ctx.results("more"))


if __name__ == "__main__":
    with app.workflow("w") as wf:
        found = wf.add(find.new(5))
        more = wf.batch("more", filled_by=found)
        summed = wf.add(total.new(first=found.result), after=more)
    app.worker(concurrency=2).run(until_idle=True)
    flow = app.wait(wf, timeout=0)
    print(app.get(summed).result, flow.state, flow.completed, flow.total)
"""


def test_a_job_in_a_process_takes_results_and_adds_members(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    ran = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("25 completed 4 4\n", 0), ran.stderr

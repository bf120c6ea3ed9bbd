"""Ends that the database has refused in a turn, written one by one. Called by `node`."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from perdure.errors import PerdureError
from perdure.ids import JobId, RunId, to_uuid
from perdure.job.model import Failure, LiveJob
from perdure.job.reports import Failed, Finish, Released
from perdure.store.protocols import OUTAGES, Locked
from perdure.store.rows import FinishStatus
from perdure.worker.lifecycle import log_end, log_ends
from perdure.worker.options import Parts
from perdure.worker.run import Ended

logger = logging.getLogger("perdure.worker")


class FallbackWriter:
    """Writes ends one at a time, after the database has refused them together: one bad end must not stop the others.

    Each is written in full; else as failed, with the reason; else the job stays as it is, and the node's next
    reconciliation releases it.
    """

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._ids = parts.ids
        self._given_up: set[RunId] = set()

    def write_each(self, unwritten: list[Ended], waiting: list[Ended]) -> None:
        """Remove ends from the front of the list as they are written or given up. After an outage the rest remains.

        Ends that a lock delays go to `waiting`: nothing is wrong with them.
        """
        while unwritten:
            if unwritten[0].written:
                log_ends(unwritten[:1], ())
            else:
                try:
                    self._write(unwritten[0])
                except Locked:
                    waiting.append(unwritten[0])
            unwritten.pop(0)

    def give_back(self, unknown: Iterable[LiveJob]) -> None:
        """Release these, each by itself: one that the database refuses stays for the next reconciliation.

        The attempt is given back where the handler never started.
        """
        for live in unknown:
            assert live.run_id is not None
            report = Released(counts=live.run_id in self._given_up)
            try:
                self._store.finish([Finish(live, report, JobId(self._ids.new()))], self._clock.now())
            except OUTAGES:
                raise
            except PerdureError as error:
                logger.error("job %s could not be given back: %s", to_uuid(live.job_id), error)  # noqa: TRY400 - the message is enough

    def forget_all_but(self, running: Container[RunId | None]) -> None:
        """The other runs have been closed."""
        self._given_up = {run_id for run_id in self._given_up if run_id in running}

    def _write(self, ended: Ended) -> None:
        claim, next_id = ended.ctx.claim, JobId(self._ids.new())
        whole = Finish(claim.live, ended.report, next_id, ended.stats, ended.ctx.children)
        reason = self._refusal(ended, whole)
        if reason is not None and self._refusal(ended, Finish(claim.live, _refused(reason), next_id)) is not None:
            self._given_up.add(claim.run_id)

    def _refusal(self, ended: Ended, finish: Finish) -> str | None:
        """Why it is not written. None: it is."""
        try:
            (finished,) = self._store.finish([finish], self._clock.now())
        except OUTAGES:
            raise
        except PerdureError as error:
            fit = ended.ctx.fit  # a database may quote what it was given
            logger.warning("the end of job %s could not be written: %s", to_uuid(finish.live.job_id), fit(str(error)))
            return fit(error.message)
        log_end(ended, finish.report, finished)
        if finished.status is FinishStatus.WAITS:
            raise Locked(f"job {to_uuid(finish.live.job_id)} is locked")
        return None


def _refused(reason: str) -> Failed:
    message = f"the run ended, but the database refused its report: {reason}"
    return Failed(Failure("FinishRefused", message, permanent=True))

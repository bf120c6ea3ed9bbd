"""What becomes of a run whose end the database refuses: it goes down a ladder, and stops no other. Used by `node`.

In full; else as failed, with the reason; else the job stays as it is, and the next reckoning releases it.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable

from perdure.clock import Clock
from perdure.errors import PerdureError
from perdure.ids import IdFactory, JobId, RunId, to_uuid
from perdure.job.model import Failure, LiveJob
from perdure.job.reports import Failed, Finish, Released
from perdure.store.answers import Answer
from perdure.store.away import AWAY, Locked
from perdure.store.protocols import Store
from perdure.worker.lifecycle import tell_of_end, tell_of_ends
from perdure.worker.run import Ended

logger = logging.getLogger("perdure.worker")


class Ladder:
    """Writes ends one at a time, and remembers those that could not be written in any form."""

    def __init__(self, store: Store, clock: Clock, ids: IdFactory) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._given_up: set[RunId] = set()

    def write_each(self, unwritten: list[Ended], waiting: list[Ended]) -> None:
        """Take from the front of the list what is written or given up. An outage: what has not been tried remains.

        What somebody's lock keeps from being written goes to `waiting`: nothing is wrong with it.
        """
        while unwritten:
            if unwritten[0].written:
                tell_of_ends(unwritten[:1], ())
            else:
                try:
                    self._write(unwritten[0])
                except Locked:
                    waiting.append(unwritten[0])
            unwritten.pop(0)

    def give_back(self, unknown: Iterable[LiveJob]) -> None:
        """Release these, each by itself: one that the database refuses stays for the next reckoning, and stops nobody.

        The attempt is given back where the handler never started.
        """
        for live in unknown:
            assert live.run_id is not None
            report = Released(counts=live.run_id in self._given_up)
            try:
                self._store.finish([Finish(live, report, JobId(self._ids.new()))], self._clock.now())
            except AWAY:
                raise
            except PerdureError as error:
                logger.error("job %s could not be given back: %s", to_uuid(live.job_id), error)  # noqa: TRY400 - said

    def forget_all_but(self, running: Container[RunId | None]) -> None:
        """The others have been closed, by whomever."""
        self._given_up = {run_id for run_id in self._given_up if run_id in running}

    def _write(self, ended: Ended) -> None:
        claim, next_id = ended.ctx.claim, JobId(self._ids.new())
        whole = Finish(claim.live, ended.report, next_id, ended.telling, ended.ctx.children)
        reason = self._refusal(ended, whole)
        if reason is not None and self._refusal(ended, Finish(claim.live, _refused(reason), next_id)) is not None:
            self._given_up.add(claim.run_id)

    def _refusal(self, ended: Ended, finish: Finish) -> str | None:
        """Why it is not written. None: it is."""
        try:
            (finished,) = self._store.finish([finish], self._clock.now())
        except AWAY:
            raise
        except PerdureError as error:
            fit = ended.ctx.fit  # a database may quote what it was given
            logger.warning("the end of job %s could not be written: %s", to_uuid(finish.live.job_id), fit(str(error)))
            return fit(error.message)
        tell_of_end(ended, finish.report, finished)
        if finished.answer is Answer.WAITS:
            raise Locked(f"job {to_uuid(finish.live.job_id)} is locked")
        return None


def _refused(reason: str) -> Failed:
    message = f"the run ended, but the database refused its report: {reason}"
    return Failed(Failure("FinishRefused", message, permanent=True))

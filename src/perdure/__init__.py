"""Perdure: durable jobs for Python on one SQLite file, or on PostgreSQL by changing the URL."""

import logging

from perdure.app import Perdure
from perdure.errors import (
    ConfigError,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    JobFailed,
    JobNotFound,
    KeyConflict,
    KindError,
    LockNotHeld,
    PerdureError,
    SchemaError,
    StoreError,
    TransactionError,
    TransactionTooLong,
    TransitionRefused,
    WaitTimeout,
)
from perdure.job.job import Job
from perdure.job.ordering import Priority
from perdure.job.retry import Retry
from perdure.job.run import Run
from perdure.job.states import RunState, State
from perdure.kind import Draft, Kind
from perdure.options import Unique
from perdure.payload.signature import Secret
from perdure.verbs.drafting import principal
from perdure.version import __version__
from perdure.worker.context import JobContext, current
from perdure.worker.signals import Cancel, Done, Fail, RetryAfter, Skip, Snooze

__all__ = [
    "Cancel",
    "ConfigError",
    "DatabaseBusy",
    "DatabaseUnavailable",
    "Done",
    "Draft",
    "Fail",
    "InvalidInput",
    "InvalidOption",
    "InvalidPayload",
    "Job",
    "JobContext",
    "JobFailed",
    "JobNotFound",
    "KeyConflict",
    "Kind",
    "KindError",
    "LockNotHeld",
    "Perdure",
    "PerdureError",
    "Priority",
    "Retry",
    "RetryAfter",
    "Run",
    "RunState",
    "SchemaError",
    "Secret",
    "Skip",
    "Snooze",
    "State",
    "StoreError",
    "TransactionError",
    "TransactionTooLong",
    "TransitionRefused",
    "Unique",
    "WaitTimeout",
    "__version__",
    "current",
    "principal",
]

logging.getLogger("perdure").addHandler(logging.NullHandler())  # silent, unless the program sets up logging

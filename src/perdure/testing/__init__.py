"""For those who test against Perdure: `kit` for jobs (`app.testing()`), `contract` for stores of their own."""

from perdure.testing.context import KitContext
from perdure.testing.kit import Kit

__all__ = ["Kit", "KitContext"]

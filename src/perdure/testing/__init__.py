"""For tests of your own code: `kit` for jobs (`app.testing()`), `contract` for your own stores."""

from perdure.testing.context import KitContext
from perdure.testing.kit import Kit

__all__ = ["Kit", "KitContext"]

"""The rig of each database: a store under test that is opened for one case and examined after it."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("perdure.testing.contract")

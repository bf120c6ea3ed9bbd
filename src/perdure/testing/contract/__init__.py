"""The contract suite: what every store must do, in whatever database it keeps its jobs.

From the command line, against an empty database: `python -m perdure.testing.contract postgresql://…`, with `--store
package.module:function` for your own store. From pytest, with a fixture that gives a `Rig`:

    @pytest.mark.parametrize("case", cases(), ids=str)
    def test_my_store_keeps_the_contract(case, rig):
        run_case(case, rig)
"""

from perdure.testing.contract.case import Case
from perdure.testing.contract.rig import NotSupported, Rig
from perdure.testing.contract.suite import GROUPS, Judged, Verdict, cases, judged, run_case

__all__ = ["GROUPS", "Case", "Judged", "NotSupported", "Rig", "Verdict", "cases", "judged", "run_case"]

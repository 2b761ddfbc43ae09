"""``benchkit analyse`` on a sealed comparison whose tables hold what no run writes."""

from pathlib import Path

import pytest

from benchkit.analysis.document import write_analysis
from benchkit.errors import BundleError
from validator.mutations.workspace import WorkingCopy


@pytest.fixture
def copy(fake_bundle: Path, tmp_path: Path) -> WorkingCopy:
    return WorkingCopy.of(fake_bundle, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "expected JSON, found ''"),
        ("zz", "expected JSON, found 'zz'"),
        ("{}", r"expected a list of \[point, arm, reason\], found '{}'"),
        ("[1]", r"expected a list of \[point, arm, reason\], found '\[1\]'"),
        ('[["batch=1", "cand"]]', r"expected a list of \[point, arm, reason\]"),
    ],
)
def test_unsupported_arms_that_are_no_list(copy: WorkingCopy, value: str, message: str) -> None:
    copy.set_values("processes", [0], unsupported=value)
    copy.reseal()
    with pytest.raises(BundleError, match=message) as caught:
        write_analysis(copy.root)
    assert f"{copy.root / 'processes.parquet'}: unsupported of process 0: " in str(caught.value)


def test_a_process_of_a_large_number_costs_nothing(copy: WorkingCopy) -> None:
    """It is none of the bundle's processes, so its row does not count; a table as long as its number would not fit into memory."""
    before = write_analysis(copy.root)
    copy.set_values("samples", [0], process=2**31 - 1)
    copy.reseal()
    after = write_analysis(copy.root)
    point = before.evidence.protocol.points[0].id
    gone = set(before.evidence.completed[point]) - set(after.evidence.completed[point])
    assert len(gone) <= 1
    assert after.evidence.samples.rows.total() == before.evidence.samples.rows.total() - 1

"""``benchkit analyse`` on a sealed study whose tables do not belong together: one message, which names file and value."""

from pathlib import Path

import pytest

from benchkit.errors import BundleError
from benchkit.mechanism.outcome import write_outcome
from validator.mutations.workspace import WorkingCopy

(PUBLISHED,) = (Path(__file__).parents[3] / "results" / "route-membership-cpu").glob("2*")


@pytest.fixture
def copy(tmp_path):
    return WorkingCopy.of(PUBLISHED, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("trajectories", "cell", "other", "expected places of the protocol, such as native/H0, found 'other/H0'"),
        ("trajectories", "history", "", "found 'native/'"),
        (
            "trajectories",
            "w13_sha256",
            "0" * 64,
            "w13 of process 0: expected the tensor '0000000000000000' in the shape",
        ),
        ("surfaces", "shape", "64x", "expected float16 values that fill their shape, found shape '64x', "),
        ("surfaces", "shape", "1x1", "expected float16 values that fill their shape, found shape '1x1', "),
        ("surfaces", "bytes", b"", ", 0 bytes"),
        ("surfaces", "sha256", "f" * 64, "expected the tensor "),
    ],
)
def test_a_table_that_does_not_fit(copy, table, column, value, message):
    copy.set_values(table, [0], **{column: value})
    copy.reseal()
    before = (copy.root / "analysis.json").read_bytes()
    with pytest.raises(BundleError) as caught:
        write_outcome(copy.root)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{copy.root}/")
    assert (copy.root / "analysis.json").read_bytes() == before


def test_a_cell_that_the_protocol_does_not_have(copy):
    protocol = copy.protocol()
    gone = protocol["cell"].pop()["name"]
    protocol["relation"] = [r for r in protocol["relation"] if gone not in (r["a"] + r["b"])]
    copy.write_protocol(protocol)
    copy.relock()
    copy.reseal()
    with pytest.raises(BundleError, match=f"found '{gone}/H0'"):
        write_outcome(copy.root)

"""A candidate claimed against two baselines: the second one is a comparator, and the family is both claims at every point."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from validator.reasons import Reason
from validator.validate import validate

DATA = Path(__file__).parent.parent / "data"
BEST = """[[arm]]
name = "best"
role = "comparator"
kernel = "cuda_copy"
params = { ctas_per_sm = 0, threads = 256, unroll = 1 }
[arm.correctness]
min_cosine = 0.99999
max_rel_error = 1e-4
truth = "stored"

[[comparison]]
candidate = "cand"
baseline = "best"
claim = "superior"

[schedule]"""


@pytest.mark.parametrize(
    ("best_ns", "verdict", "family"), [(39_900, "superior", "superior"), (38_000, "inferior", "inferior")]
)
def test_the_family_holds_both_claims(
    tmp_path: Path, run_benchkit: Callable[..., CompletedProcess[str]], best_ns: int, verdict: str, family: str
) -> None:
    protocol, script = tmp_path / "two.toml", tmp_path / "script.toml"
    whole = (
        (DATA / "cuda.toml")
        .read_text("utf-8")
        .replace("ctas_per_sm = 0 }", "ctas_per_sm = 0, threads = 256, unroll = 1 }")
    )
    protocol.write_text(whole.replace("[schedule]", BEST), "utf-8")
    text = (DATA / "fake-cuda.toml").read_text("utf-8")
    script.write_text(text.replace("cand = 39500", f"cand = 39500\nbest = {best_ns}"), "utf-8")
    assert run_benchkit("lock", protocol).returncode == 0
    done = run_benchkit("run-protocol", protocol, "--synthetic", script, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    (bundle,) = (tmp_path / "fake-cuda").glob("2*")
    report = validate(bundle)
    assert report.codes == (Reason.SYNTHETIC,)  # what benchkit claims of both is what the validator finds
    assert report.numbers is not None
    found = [(item.baseline, item.operating_point, item.verdict) for item in report.numbers.comparisons]
    assert found == [
        ("base", "mib=8", "superior"),
        ("base", "mib=16", "superior"),
        ("best", "mib=8", verdict),
        ("best", "mib=16", verdict),
    ]
    assert report.numbers.family.verdict == family


def test_a_claim_against_a_ceiling_is_none(tmp_path: Path, run_benchkit: Callable[..., CompletedProcess[str]]) -> None:
    protocol = tmp_path / "two.toml"
    text = (DATA / "cuda.toml").read_text("utf-8")
    protocol.write_text(text.replace('baseline = "base"\n', 'baseline = "copy"\n'), "utf-8")
    done = run_benchkit("check", protocol)
    assert done.returncode == 2
    assert "a claim needs an arm with role baseline or comparator, found ceiling" in done.stderr

"""Tuned values in a protocol file: in the place of the old ones, ahead of the arm's tables, and nothing else moves."""

from pathlib import Path

from benchkit.run.tuning import Tuned, write_into

BEFORE = """# a protocol
[[arm]]
name = "one"
params = { a = 1, b = 2 } # by hand
by_point."batch=1" = { a = 5 }

[arm.correctness]
truth = "stored"

# The next arm.
[[arm]]
name = "two"
params = { a = 1 }
"""
AFTER = """# a protocol
[[arm]]
name = "one"
params = {a = 3, b = 2} # by hand
by_point."batch=4,routing=zipf-1.2" = {b = 7}

[arm.correctness]
truth = "stored"

# The next arm.
[[arm]]
name = "two"
params = { a = 1 }
"""


def test_what_a_point_has_of_its_own_stands_ahead_of_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(BEFORE)
    own = {"batch=4,routing=zipf-1.2": {"a": 3, "b": 7}}
    write_into(path, [Tuned(arm="one", params={"a": 3, "b": 2}, by_point=own, trials={})])
    assert path.read_text() == AFTER

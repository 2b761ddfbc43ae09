"""Readers of untrusted files, fed damaged documents: no undeclared error, no hang, no file touched outside."""

import random
from datetime import timedelta
from pathlib import Path

import pytest
import targets as fuzz
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NAMES = [
    "validator protocol", "validator lock", "validator manifest", "validator ledger", "validator table",
    "validator bundle, manifest", "validator bundle, analysis", "validator bundle, processes", "validator bundle, protocol",
    "benchkit protocol", "benchkit lock", "benchkit manifest", "benchkit table", "benchkit ledger",
    "validator study", "validator plans", "validator bundle, study protocol", "validator bundle, study plans",
    "validator bundle, study plans table", "validator bundle, study surfaces", "validator bundle, study trajectories",
    "benchkit study", "benchkit plans",
]  # fmt: skip
WATCH = fuzz.Watch()


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, fuzz.Target]]:
    """All targets, by name, and the folder that they keep to."""
    folder = tmp_path_factory.mktemp("fuzz")
    return folder, {target.name: target for target in fuzz.targets(folder)}


def test_all_targets_are_here(readers: tuple[Path, dict[str, fuzz.Target]]) -> None:
    assert list(readers[1]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_reader(readers: tuple[Path, dict[str, fuzz.Target]], name: str) -> None:
    folder, known = readers
    target = known[name]
    fuzz.feed(target, target.seed)

    @settings(
        max_examples=12 if "bundle" in name else 40,
        deadline=timedelta(seconds=20),
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.one_of(
            st.integers(0, 2**32).map(lambda n: fuzz.damaged(target.seed, random.Random(n))), st.binary(max_size=99)
        )
    )
    def holds(data: bytes) -> None:
        with WATCH.on(folder):
            fuzz.feed(target, data)
        assert WATCH.outside == []

    holds()

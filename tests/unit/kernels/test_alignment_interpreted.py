"""Stable alignment in Triton's interpreter (alignment_cases.py holds the tests). No GPU here."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


@pytest.mark.parametrize("cases", ["alignment_cases.py", "marlin_cases.py"])
def test_all_cases_in_the_interpreter(cases):
    """In a process of its own: Triton decides when it is first imported whether it compiles or interprets."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).with_name(cases))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout

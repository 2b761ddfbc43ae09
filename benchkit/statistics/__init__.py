"""Pure functions over arrays: estimand, intervals, verdicts, gates. No files, no clock, no frames, no GPU."""

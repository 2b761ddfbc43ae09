"""benchkit: locked protocols for GPU kernel benchmarks, raw samples in Parquet, claims that others can check."""

__version__ = "0.1.0"

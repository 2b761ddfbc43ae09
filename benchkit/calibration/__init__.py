"""Does the method keep its promise? Simulated experiments with a known truth, the rates that they give, and the bands in which they must lie.

``nulls`` makes process medians, ``methods`` rejects or not, ``study`` counts and judges, ``table`` writes it down.
"""

"""Every published number, recomputed from the samples: statistics, gates, controls, arms, family."""

"""The checks, one module a stage: each takes what was read and gives what it found."""

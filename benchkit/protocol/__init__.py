"""The locked experiment: its model, how a TOML file becomes one, and its lock."""

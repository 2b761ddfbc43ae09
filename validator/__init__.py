"""validator: recomputes every number of a benchkit bundle from its raw samples and says what holds. Shares no code with benchkit."""

__version__ = "0.1.0"

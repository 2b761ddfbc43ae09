"""How large a routing and a launch may be that the route-block study looks at: refused before anything is computed.

Rules:
1. Options have a bound each. Aligned rows (for the worst routing), tiles and pairs of blocks follow from them and the routes, and are bounded, too.
2. What keeps to these limits is answered in seconds.
"""

from benchkit.errors import DataError

MAX_EXPERTS = 1 << 16  # as protocols/README.md has it
MAX_BLOCK = 1 << 10
MAX_SIZE = 1 << 20
MAX_GRID = 1 << 16
MAX_ALIGNED = 1 << 20
MAX_TILES = 1 << 18
MAX_PAIRS = 1 << 16


def refuse_beyond(most: int, found: int, what: str, remedy: str) -> None:
    """Raise DataError where ``found`` exceeds ``most``."""
    if found > most:
        raise DataError(f"{what}: expected at most {most}, found {found}; {remedy}")

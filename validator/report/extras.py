"""Numbers on request as tables: whatever a comparison or the family holds beyond the standard columns.

Rules:
1. A list of objects becomes a table of its own, one row per entry, with the comparison that it belongs to in front.
2. Single values and objects of all comparisons become one table, "More numbers".
3. Nothing here knows the names: a field that the validator adds tomorrow is shown tomorrow.
"""

from collections.abc import Mapping, Sequence

from validator.findings import Comparison, Json, Report, plain
from validator.report.facts import extras
from validator.report.table import Extra, number
from validator.report.trajectories import study_tables

_FAMILY = ("claim", "verdict", "comparisons")
_KEY = ("operating point", "comparison")
_LAUNCHES = ("kernels", "scratch_bytes", "repeats", "distinct_outputs", "distinct_modes")


def extra_tables(report: Report) -> list[Extra]:
    """Give the tables of everything beyond the standard columns."""
    if report.numbers is None:
        return study_tables(report)
    single: list[tuple[tuple[str, ...], Mapping[str, Json]]] = []
    lists: dict[str, list[tuple[tuple[str, ...], Mapping[str, Json]]]] = {}
    for item in report.numbers.comparisons:
        key = _key(item)
        values: dict[str, Json] = {}
        for name, value in extras(item):
            if isinstance(value, list):
                lists.setdefault(name, []).extend((key, entry) for entry in value if isinstance(entry, dict))
            elif isinstance(value, dict):
                values.update(value)
            else:
                values[name] = value
        if values:
            single.append((key, values))
    family = plain(report.numbers.family)
    tables = [_table("more numbers", _KEY, single)] if single else []
    tables += [_table(name, _KEY, rows) for name, rows in lists.items() if rows]
    for name, value in family.items() if isinstance(family, dict) else ():
        if name not in _FAMILY and isinstance(value, list):
            rows = [((), entry) for entry in value if isinstance(entry, dict)]
            tables += [_table(f"family: {name}", (), rows)] if rows else []
    return tables + _beside(report)


def _beside(report: Report) -> list[Extra]:
    """Give what stands beside the claims: errors against several truths, launches, stages, and power where it was capped."""
    found = report.supplement
    if found is None or report.numbers is None:
        return []
    launched = [item for item in report.numbers.arms if item.kernels is not None or item.repeats is not None]
    capped = found.power_cap if any(item.percent_of_rows for item in found.power_cap) else ()
    several = found.accuracy if len({item.truth for item in found.accuracy}) > 1 else ()
    lists: list[tuple[str, tuple[str, ...], Sequence[object]]] = [
        ("launches and outputs", ("operating_point", "arm", *_LAUNCHES), launched),
        ("accuracy against each truth", (), several),
        ("kernels", (), found.launches),
        ("repacking", (), found.repacking),
        ("one token among others", (), found.invariance),
        ("stages", (), found.stages),
        ("bookkeeping", (), found.bookkeeping),
        ("software power cap", (), capped),
        ("ceilings", (), found.ceilings),
        ("uneven samples", (), found.uneven),
        ("drift and dependence", (), found.series),
    ]
    return [_objects(title, names, items) for title, names, items in lists if items]


def _objects(title: str, names: Sequence[str], items: Sequence[object]) -> Extra:
    rows = [value for value in map(plain, items) if isinstance(value, dict)]
    head = tuple(names) or tuple(rows[0])
    texts = sum(isinstance(rows[0][name], str) for name in head)
    return Extra(
        title=title,
        head=tuple(name.replace("_", " ") for name in head),
        rows=tuple(tuple(_shown(row[name]) for name in head) for row in rows),
        text_columns=texts,
    )


def _key(item: Comparison) -> tuple[str, ...]:
    return item.operating_point, f"{item.candidate} / {item.baseline}"


def _table(title: str, key: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Mapping[str, Json]]]) -> Extra:
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    return Extra(
        title=title.replace("_", " "),
        head=(*key, *(name.replace("_", " ") for name in names)),
        rows=tuple((*front, *(_shown(values.get(name)) for name in names)) for front, values in rows),
        text_columns=max(len(key), 1),
    )


def _shown(value: Json) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, int | float):
        return number(value, 8)
    return str(value)

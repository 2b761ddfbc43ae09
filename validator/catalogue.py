"""``validator index``: many bundles as one Parquet file that any engine can query.

Rules (results/README.md, "Catalogue"):
1. Every word and number is the validator's own, recomputed now; what a bundle claims is never copied.
2. One row per comparison and operating point; one row without numbers for a bundle that is not VALID, so that a query
   that forgets the validity finds no number in it.
3. The file holds no time and its rows are sorted: the same bundles give the same rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from validator.findings import ArmSummary, Comparison, CouldNotCheckError, Report, Validity
from validator.reading.bundle import Bundle, open_bundle
from validator.reading.canonical import StrictJsonError, parse_object
from validator.remote import fetched, is_url, named
from validator.validate import could_not_check, validate

_TEXT, _REAL, _COUNT = pa.string(), pa.float64(), pa.int64()
_COLUMNS: Mapping[str, pa.DataType] = {
    "location": _TEXT,
    "protocol_id": _TEXT,
    "protocol_digest": _TEXT,
    "run_id": _TEXT,
    "manifest_sha256": _TEXT,
    "validity": _TEXT,
    "reasons": _TEXT,
    "device": _TEXT,
    "gpu": _TEXT,
    "gpu_uuid": _TEXT,
    "cpu": _TEXT,
    "platform": _TEXT,
    "driver": _TEXT,
    "torch": _TEXT,
    "family_verdict": _TEXT,
    "operating_point": _TEXT,
    "candidate": _TEXT,
    "baseline": _TEXT,
    "claim": _TEXT,
    "verdict": _TEXT,
    "gates": _TEXT,
    "ratio": _REAL,
    "lower": _REAL,
    "upper": _REAL,
    "margin": _REAL,
    "alpha_one_sided": _REAL,
    "pairs": _COUNT,
    "candidate_median_ns": _REAL,
    "baseline_median_ns": _REAL,
    "candidate_gb_per_s": _REAL,
    "candidate_percent_of_copy": _REAL,
}
SCHEMA = pa.schema(list(_COLUMNS.items()), metadata={"validator.schema": "validator.catalogue/1"})
DEEPEST = 4


def bundles_at(location: str) -> list[str]:
    """Give the bundles at a location: a URL is one, a local folder is one or holds some, hidden folders aside."""
    if is_url(location):
        return [location]
    root = Path(location)
    if (root / "manifest.json").exists() or not root.is_dir():
        return [location]
    found: list[Path] = []
    level = [root]
    for _ in range(DEEPEST):
        level = [
            child
            for folder in level
            for child in sorted(folder.iterdir())
            if child.is_dir() and not child.is_symlink() and not child.name.startswith(".")
        ]
        found += [child for child in level if (child / "manifest.json").exists()]
        level = [child for child in level if child not in found]
    return [str(path) for path in found]


def catalogue(locations: Iterable[str], *, base: Path) -> tuple[pa.Table, tuple[Report, ...]]:
    """Check bundles and give the table of what holds; local places are named relative to ``base`` where they lie below it."""
    rows: list[dict[str, Any]] = []
    reports = []
    for location in sorted(set(locations)):
        report, around = _look(location)
        reports.append(report)
        rows.extend({**_identity(report, location, base), **around, **numbers} for numbers in _numbers(report))
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    return table.sort_by([(name, "ascending") for name in ("location", "operating_point", "candidate")]), tuple(reports)


def write_catalogue(table: pa.Table, path: Path) -> None:
    """Write a catalogue under a temporary name, then rename it."""
    part = path.with_name(path.name + ".part")
    pq.write_table(table, part, compression="zstd", write_page_checksum=True)
    part.replace(path)


def _look(location: str) -> tuple[Report, dict[str, Any]]:
    try:
        with fetched(location) as folder:
            report = named(validate(folder), location)
            return report, {} if report.validity is Validity.COULD_NOT_CHECK else _around(folder)
    except CouldNotCheckError as error:
        return named(could_not_check(Path(location), str(error)), location), {}


def machine(folder: Path) -> tuple[str, float | None]:
    """Name the machine of a bundle as its first process recorded it, and give the band of its protocol."""
    bundle = open_bundle(folder)
    words = _surroundings(bundle)
    names = [words[key] for key in ("gpu", "gpu_uuid", "cpu", "platform") if key in words]
    band = bundle.protocol.statistics.reproduction_band if bundle.protocol else None
    return ", ".join(names) or "an unknown machine", band


def _around(folder: Path) -> dict[str, Any]:
    return _surroundings(open_bundle(folder))


def _surroundings(bundle: Bundle) -> dict[str, Any]:
    """Give the machine as the first process recorded it, and the manifest's digest."""
    found: dict[str, Any] = {"manifest_sha256": bundle.manifest_sha256}
    known = [record.environment for record in bundle.processes or () if record.environment.known]
    if not known:
        return found
    try:
        environment = parse_object(known[0].text.encode("utf-8"))
    except StrictJsonError:
        return found
    gpu, packages = environment.get("gpu"), environment.get("packages")
    torch = packages.get("torch") if isinstance(packages, dict) else None
    words = {key: environment.get(key) for key in ("device", "cpu", "platform", "driver")}
    words["gpu"] = gpu.get("name") if isinstance(gpu, dict) else None
    words["gpu_uuid"] = gpu.get("uuid") if isinstance(gpu, dict) else None
    words["torch"] = torch.get("imported") if isinstance(torch, dict) else None
    return found | {key: value for key, value in words.items() if isinstance(value, str)}


def _identity(report: Report, location: str, base: Path) -> dict[str, Any]:
    place = location
    if not is_url(location):
        path = Path(location).resolve()
        place = path.relative_to(base.resolve()).as_posix() if path.is_relative_to(base.resolve()) else location
    return {
        "location": place,
        "protocol_id": report.bundle.protocol_id,
        "protocol_digest": report.bundle.protocol_digest,
        "run_id": report.bundle.run_id,
        "validity": report.validity.value,
        "reasons": ",".join(dict.fromkeys(report.codes)),
    }


def _numbers(report: Report) -> Iterator[dict[str, Any]]:
    if report.numbers is None or report.validity is not Validity.VALID:
        yield {}
        return
    arms = {(arm.operating_point, arm.arm): arm for arm in report.numbers.arms}
    for item in report.numbers.comparisons:
        candidate = arms.get((item.operating_point, item.candidate))
        baseline = arms.get((item.operating_point, item.baseline))
        yield {
            "family_verdict": report.numbers.family.verdict.value,
            **_comparison(item),
            **_medians(candidate, baseline),
        }


def _comparison(item: Comparison) -> dict[str, Any]:
    names = (
        "operating_point",
        "candidate",
        "baseline",
        "claim",
        "ratio",
        "lower",
        "upper",
        "margin",
        "alpha_one_sided",
    )
    return {
        **{name: getattr(item, name) for name in (*names, "pairs")},
        "verdict": item.verdict.value,
        "gates": ",".join(gate.gate for gate in item.gates),
    }


def _medians(candidate: ArmSummary | None, baseline: ArmSummary | None) -> dict[str, Any]:
    return {
        "candidate_median_ns": candidate and candidate.median_ns,
        "baseline_median_ns": baseline and baseline.median_ns,
        "candidate_gb_per_s": candidate and candidate.gb_per_s,
        "candidate_percent_of_copy": candidate and candidate.percent_of_copy,
    }

"""`validator index`: what stands in a catalogue, the queries that README shows, and the catalogue of results/."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import builder
import forked
import pyarrow.parquet as pq
import pytest

from validator.catalogue import SCHEMA, bundles_at, catalogue
from validator.validate import validate

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a valid bundle, a tampered one that claims to be superior, and none at all."""
    root = tmp_path_factory.mktemp("shelf")
    good = builder.draft().seal(root / "p" / "good")
    bad = builder.draft()
    bad.samples[-1]["duration_ns"] = 0
    bad.seal(root / "p" / "bad")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "manifest.json").write_text("{}")
    assert good.exists()
    return root


def index(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run("validator.cli", "index", *arguments)


def test_index(shelf: Path) -> None:
    done = index(shelf, "--output", shelf / "catalogue.parquet")
    assert (done.returncode, done.stdout) == (0, f"{shelf}/catalogue.parquet: 3 rows of 2 bundles\n")
    rows = pq.read_table(shelf / "catalogue.parquet").to_pylist()
    assert [(row["location"], row["validity"], row["operating_point"]) for row in rows] == [
        ("p/bad", "INVALID", None),
        ("p/good", "VALID", "mib=1"),
        ("p/good", "VALID", "mib=2"),
    ]
    assert (rows[0]["reasons"], rows[0]["ratio"], rows[0]["family_verdict"]) == ("NON_POSITIVE_DURATION", None, None)
    own = validate(shelf / "p" / "good").numbers
    assert own is not None
    assert [row["ratio"] for row in rows[1:]] == [item.ratio for item in own.comparisons]
    medians = {(arm.operating_point, arm.arm): arm.median_ns for arm in own.arms}
    assert rows[1]["candidate_median_ns"] == medians["mib=1", "cand"]
    assert rows[1]["manifest_sha256"] == builder.sha((shelf / "p" / "good" / "manifest.json").read_bytes())
    assert (rows[1]["device"], rows[1]["cpu"], rows[1]["gpu"]) == ("host", "c", None)


def test_places_without_a_bundle(shelf: Path, tmp_path: Path) -> None:
    assert index(tmp_path).returncode == 2
    absent = index(tmp_path / "none", "--output", tmp_path / "c.parquet")
    assert (absent.returncode, absent.stderr.splitlines()[-1]) == (
        2,
        f"Error: expected folders with bundles, found none at {tmp_path / 'none'}",
    )
    assert not (tmp_path / "c.parquet").exists()
    assert index("http://127.0.0.1:1/x", "--output", tmp_path / "c.parquet").returncode == 3
    assert [row["validity"] for row in pq.read_table(tmp_path / "c.parquet").to_pylist()] == ["COULD_NOT_CHECK"]
    assert index(shelf, "--output", tmp_path / "no" / "c.parquet").returncode == 2


def code(language: str) -> list[str]:
    readme = (ROOT / "README.md").read_text("utf-8")
    part = readme[readme.index("### Query them") : readme.index("### Read the samples")]
    return re.findall(rf"```{language}\n(.*?)```", part, flags=re.DOTALL)


def run_python(text: str, name: str) -> Any:
    space: dict[str, Any] = {}
    exec(text, space)
    return space[name]


def test_query_by_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(ROOT)
    (query,) = code("sql")
    found = duckdb.sql(query).fetchall()
    assert ("copy-aa-h200", "NVIDIA H200", "non_inferior", 3) in found


def test_query_by_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    monkeypatch.chdir(ROOT)
    (text,) = [text for text in code("python") if "polars" in text]
    found = run_python(text, "open_points")
    assert found.columns == ["protocol_id", "operating_point", "candidate", "ratio", "upper", "verdict"]
    assert "copy-aa-h200" not in found["protocol_id"].to_list()


def test_query_by_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(ROOT)
    (text,) = [text for text in code("python") if "pandas" in text]
    found = run_python(text, "machines")
    assert found.loc[("copy-aa-h200", "mib=200", "copy_again"), "count"] >= 1


def test_the_catalogue_of_results_is_that_of_its_bundles() -> None:
    table, _ = catalogue(bundles_at(str(RESULTS)), base=RESULTS)
    stored = pq.read_table(RESULTS / "catalogue.parquet")
    assert stored.schema.equals(SCHEMA)
    close = [
        {key: pytest.approx(value, rel=1e-9) if isinstance(value, float) else value for key, value in row.items()}
        for row in stored.to_pylist()
    ]
    assert table.to_pylist() == close, "results/catalogue.parquet is not up to date: run make catalogue"


def test_the_dataset_card() -> None:
    yaml = pytest.importorskip("yaml")
    text = (RESULTS / "README.md").read_text("utf-8")
    assert text.startswith("---\n")
    card = yaml.safe_load(text.split("---\n")[1])
    names = [config["config_name"] for config in card["configs"]]
    assert (card["license"], names) == (
        "apache-2.0",
        ["catalogue", "samples", "processes", "processes-without-repacking"],
    )
    named = set()
    for config in card["configs"]:
        places = [
            place
            for item in config["data_files"]
            for place in ([item["path"]] if isinstance(item["path"], str) else item["path"])
        ]
        paths = [path for place in places for path in RESULTS.glob(place)]
        assert paths, config
        named |= set(paths)
        schemas = {pq.read_schema(path).remove_metadata().to_string() for path in paths}
        assert len(schemas) == 1, "load_dataset needs one schema"
    assert named >= set(RESULTS.glob("*/*/processes.parquet"))


def test_load_dataset_reads_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    code = (
        "import datasets, json, sys\n"
        "loaded = {name: datasets.load_dataset(sys.argv[1], name, split='train') for name in ('catalogue', 'samples')}\n"
        "print(json.dumps({name: [each.num_rows, str(each.features)] for name, each in loaded.items()}))\n"
    )
    environment = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(RESULTS)], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["catalogue"][0] == pq.read_metadata(RESULTS / "catalogue.parquet").num_rows
    assert found["samples"][0] == sum(pq.read_metadata(path).num_rows for path in RESULTS.glob("*/*/samples.parquet"))
    assert "'duration_ns': Value('int64')" in found["samples"][1]


@pytest.mark.parametrize("engine", ["pyarrow", "pandas", "polars", "duckdb"])
def test_e01_samples_are_integers_of_nanoseconds_everywhere(engine: str) -> None:
    library = pytest.importorskip(engine)
    path = next(RESULTS.glob("*/*/samples.parquet"))
    expected = pq.read_table(path, columns=["duration_ns"]).column(0).to_pylist()
    if engine == "pyarrow":
        kind, values = str(pq.read_schema(path).field("duration_ns").type), expected
    elif engine == "pandas":
        series = library.read_parquet(path)["duration_ns"]
        kind, values = str(series.dtype), series.tolist()
    elif engine == "polars":
        column = library.read_parquet(path)["duration_ns"]
        kind, values = str(column.dtype), column.to_list()
    else:
        found = library.sql(f"SELECT duration_ns FROM '{path}'")
        kind, values = str(found.types[0]), [row[0] for row in found.fetchall()]
    assert kind.lower() in ("int64", "bigint")
    assert values == expected

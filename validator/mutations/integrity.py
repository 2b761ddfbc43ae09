"""Changes of the sealed files themselves: nothing is resealed, except where the seal itself would hide a broken ledger."""

import os
import shutil
import unicodedata

import pyarrow as pa
import pyarrow.parquet as pq

from validator.mutations.content import sha256
from validator.mutations.mutation import collected, mutation, with_rows
from validator.mutations.provenance import widen_margin
from validator.mutations.timing import subject
from validator.mutations.workspace import WorkingCopy
from validator.reasons import Reason


@mutation(Reason.MANIFEST_MISSING)
def manifest_deleted(copy: WorkingCopy) -> None:
    """manifest.json is deleted."""
    copy.path("manifest.json").unlink()


@mutation(Reason.MANIFEST_INVALID)
def manifest_truncated(copy: WorkingCopy) -> None:
    """The second half of manifest.json is cut off."""
    _halve(copy, "manifest.json")


@mutation(Reason.MANIFEST_INVALID)
def manifest_without_tables(copy: WorkingCopy) -> None:
    """The manifest has no content digests any more."""
    manifest = copy.read_json("manifest.json")
    del manifest["tables"]
    copy.write_json("manifest.json", manifest)


@mutation(Reason.MANIFEST_INVALID)
def manifest_with_key_twice(copy: WorkingCopy) -> None:
    """The manifest says twice whether the run is synthetic: readers differ on which word counts."""
    text = copy.path("manifest.json").read_bytes().decode()
    head, brace, tail = text.partition("{")
    copy.path("manifest.json").write_bytes(f'{head}{brace}"synthetic": false,{tail}'.encode())


@mutation(Reason.SIGNATURE_INVALID)
def signature_is_none(copy: WorkingCopy) -> None:
    """What stands where a signature should be signs nothing."""
    copy.path("manifest.json.sig.json").write_bytes(b"{}\n")


@mutation(Reason.UNSAFE_PATH)
def file_is_a_link(copy: WorkingCopy) -> None:
    """A file is replaced by a link to the same bytes outside the bundle."""
    outside = copy.root.parent / "outside.lock"
    shutil.move(copy.path("protocol.lock"), outside)
    copy.path("protocol.lock").symlink_to(outside)


@mutation(Reason.UNSAFE_PATH)
def name_leaves_the_bundle(copy: WorkingCopy) -> None:
    """The manifest lists a file outside the bundle."""
    (copy.root.parent / "outside.txt").write_bytes(b"")
    _list_file(copy, "../outside.txt")


@mutation(Reason.UNSAFE_PATH)
def names_collide(copy: WorkingCopy) -> None:
    """The manifest lists two names that are one on a file system without case."""
    shutil.copyfile(copy.path("protocol.lock"), copy.path("PROTOCOL.lock"))
    _list_file(copy, "PROTOCOL.lock")


@mutation(Reason.UNSAFE_PATH)
def name_is_absolute(copy: WorkingCopy) -> None:
    """The manifest lists a file by its place on the author's disk."""
    _list_file(copy, str(copy.path("protocol.lock").resolve()))


@mutation(Reason.UNSAFE_PATH)
def name_is_a_device(copy: WorkingCopy) -> None:
    """The manifest lists a name that is a device on Windows."""
    _list_file(copy, "assets/aux.parquet")


@mutation(Reason.UNSAFE_PATH)
def listed_names_collide(copy: WorkingCopy) -> None:
    """The manifest lists two names that are one without case; only one of them is in the folder."""
    _list_file(copy, "Samples.parquet")


@mutation(Reason.UNSAFE_PATH)
def names_collide_in_unicode(copy: WorkingCopy) -> None:
    """Two files have one accented name, one composed and one not."""
    for form in ("NFC", "NFD"):
        _add_file(copy, unicodedata.normalize(form, "d\u00e9code.cu"))


@mutation(Reason.UNSAFE_PATH)
def name_in_another_unicode_form(copy: WorkingCopy) -> None:
    """The manifest lists a composed name, the folder holds the decomposed one."""
    _add_file(copy, "d\u00e9code.cu")
    copy.path("d\u00e9code.cu").rename(copy.path("de\u0301code.cu"))


@mutation(Reason.UNSAFE_PATH)
def folder_is_a_link(copy: WorkingCopy) -> None:
    """A folder of the bundle is a link to one outside."""
    (copy.root.parent / "elsewhere").mkdir()
    copy.path("extras").symlink_to(copy.root.parent / "elsewhere")


@mutation(Reason.UNSAFE_PATH)
def file_is_a_pipe(copy: WorkingCopy) -> None:
    """A member is a pipe, on which a reader would wait for ever."""
    copy.path("protocol.lock").unlink()
    os.mkfifo(copy.path("protocol.lock"))


@mutation(Reason.OVERSIZED, reseal=True)
def table_is_a_bomb(copy: WorkingCopy) -> None:
    """samples.parquet is a few kilobytes that unpack to hundreds of megabytes of equal rows."""
    part = pa.concat_tables([copy.table("samples").slice(0, 1)] * 1000).combine_chunks()
    with pq.ParquetWriter(copy.path("samples.parquet"), part.schema, compression="zstd") as writer:
        bulk = pa.concat_tables([part] * 50)
        for _ in range(60):
            writer.write_table(bulk, row_group_size=50_000)


@mutation(Reason.OVERSIZED, reseal=True)
def page_is_a_bomb(copy: WorkingCopy) -> None:
    """One text in processes.parquet unpacks from a few kilobytes to 80 MB."""
    copy.set_values("processes", [0], reason="0" * 80_000_000)


@mutation(Reason.OVERSIZED)
def lock_is_a_bomb(copy: WorkingCopy) -> None:
    """protocol.lock is a sparse file of 64 MiB that takes no room on the disk."""
    os.truncate(copy.path("protocol.lock"), 64 << 20)


@mutation(Reason.OVERSIZED)
def folders_without_end(copy: WorkingCopy) -> None:
    """The bundle holds twenty folders in each other."""
    copy.path("/".join(["deeper"] * 20)).mkdir(parents=True)


@mutation(Reason.FILE_MISSING)
def file_deleted(copy: WorkingCopy) -> None:
    """samples.parquet is deleted."""
    copy.path("samples.parquet").unlink()


@mutation(Reason.EXTRA_FILE)
def file_added(copy: WorkingCopy) -> None:
    """A file that nobody listed lies in the bundle."""
    copy.path("notes.txt").write_bytes(b"take the second run\n")


@mutation(Reason.EXTRA_FILE, reseal=True)
def file_hidden_in_a_report(copy: WorkingCopy) -> None:
    """A file that nobody listed lies in a folder that is named like a report."""
    copy.path("report.d").mkdir()
    copy.path("report.d/samples.csv").write_bytes(b"")


@mutation(Reason.FILE_CHANGED)
def lock_edited(copy: WorkingCopy) -> None:
    """The time in protocol.lock is changed."""
    copy.write_json("protocol.lock", {**copy.read_json("protocol.lock"), "locked_utc": "2020-01-01T00:00:00Z"})


@mutation(Reason.FILE_CHANGED)
def protocol_edited(copy: WorkingCopy) -> None:
    """The margin in protocol.toml is widened."""
    widen_margin(copy)


@mutation(Reason.FILE_CHANGED)
def ledger_emptied(copy: WorkingCopy) -> None:
    """attempts.jsonl holds no attempt any more."""
    copy.path("attempts.jsonl").write_bytes(b"")


@mutation(Reason.FILE_CHANGED)
def samples_truncated(copy: WorkingCopy) -> None:
    """The second half of samples.parquet is cut off."""
    _halve(copy, "samples.parquet")


@mutation(Reason.FILE_UNREADABLE, reseal=True)
def samples_truncated_and_resealed(copy: WorkingCopy) -> None:
    """The second half of samples.parquet is cut off, and the manifest lists what is left."""
    _halve(copy, "samples.parquet")


@mutation(Reason.FILE_CHANGED)
def bit_flipped(copy: WorkingCopy) -> None:
    """One bit in the page of a duration is flipped."""
    _flip_bit(copy)


@mutation(Reason.FILE_UNREADABLE, reseal=True)
def bit_flipped_and_resealed(copy: WorkingCopy) -> None:
    """One bit in the page of a duration is flipped, and the manifest names the new file: the page's checksum tells."""
    _flip_bit(copy)


@mutation(Reason.CONTENT_CHANGED)
def sample_changed(copy: WorkingCopy) -> None:
    """One duration is one nanosecond shorter."""
    durations = copy.column("samples", "duration_ns")
    durations[-1] -= 1
    copy.set_columns("samples", duration_ns=durations)


@mutation(Reason.CONTENT_CHANGED)
def row_deleted(copy: WorkingCopy) -> None:
    """The last row of samples is deleted."""
    copy.drop("samples", [len(copy.column("samples", "seq")) - 1])


@mutation(Reason.CONTENT_CHANGED)
def row_duplicated(copy: WorkingCopy) -> None:
    """The first row of samples stands twice."""
    copy.take("samples", [0, *range(len(copy.column("samples", "seq")))])


@mutation(Reason.CONTENT_CHANGED)
def rows_swapped(copy: WorkingCopy) -> None:
    """The first two rows of samples are swapped."""
    copy.take("samples", [1, 0, *range(2, len(copy.column("samples", "seq")))])


@mutation(Reason.CONTENT_CHANGED, applies_to=with_rows("correctness"))
def correctness_changed(copy: WorkingCopy) -> None:
    """A cosine is made perfect."""
    copy.set_values("correctness", [0], min_cosine=1.0, max_abs_error=0.0, rel_error=0.0, output_sha256="0" * 64)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_line_edited(copy: WorkingCopy) -> None:
    """The first time in the ledger is changed, so that the next line names another digest."""
    lines = copy.ledger()
    lines[0]["utc"] = "2020-01-01T00:00:00Z"
    copy.write_ledger(lines, chain=False)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_without_end(copy: WorkingCopy) -> None:
    """The end of this run is not in the ledger."""
    copy.write_ledger(copy.ledger()[:-1], chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_without_start(copy: WorkingCopy) -> None:
    """The start of this run is not in the ledger."""
    run = copy.read_json("manifest.json")["run_id"]
    lines = [line for line in copy.ledger() if not (line["run_id"] == run and line["event"] == "start")]
    copy.write_ledger(lines, chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_starts_twice(copy: WorkingCopy) -> None:
    """The run started twice under one name, as whoever keeps the better half would have it."""
    run = copy.read_json("manifest.json")["run_id"]
    lines = copy.ledger()
    start = next(line for line in lines if line["run_id"] == run and line["event"] == "start")
    copy.write_ledger([start, *lines], chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_ends_twice(copy: WorkingCopy) -> None:
    """The run ended, and ended again, and was not resumed between."""
    copy.write_ledger([*copy.ledger(), copy.ledger()[-1]], chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_line_after_end(copy: WorkingCopy) -> None:
    """The ledger goes on after the end of this run."""
    lines = copy.ledger()
    copy.write_ledger([*lines, {**lines[-1], "event": "resume", "status": None}], chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def ledger_calls_the_run_failed(copy: WorkingCopy) -> None:
    """The ledger's last word is not that of processes.parquet."""
    lines = copy.ledger()
    other = "complete" if lines[-1]["status"] == "failed_processes" else "failed_processes"
    copy.write_ledger([*lines[:-1], {**lines[-1], "status": other}], chain=True)


@mutation(Reason.LEDGER_BROKEN, reseal=True)
def failure_not_in_the_ledger(copy: WorkingCopy) -> None:
    """A process failed, and the ledger says that the run is complete."""
    copy.set_values("processes", copy.rows("processes", **subject(copy)), status="failed", reason="killed")
    copy.write_ledger([*copy.ledger()[:-1], {**copy.ledger()[-1], "status": "complete"}], chain=True)


def _halve(copy: WorkingCopy, name: str) -> None:
    data = copy.path(name).read_bytes()
    copy.path(name).write_bytes(data[: len(data) // 2])


def _list_file(copy: WorkingCopy, name: str) -> None:
    manifest = copy.read_json("manifest.json")
    manifest["files"][name] = manifest["files"]["protocol.lock"]
    copy.write_json("manifest.json", manifest)


def _add_file(copy: WorkingCopy, name: str) -> None:
    copy.path(name).write_bytes(b"// a kernel\n")
    manifest = copy.read_json("manifest.json")
    manifest["files"][name] = {"sha256": sha256(b"// a kernel\n"), "bytes": 12}
    copy.write_json("manifest.json", manifest)


def _flip_bit(copy: WorkingCopy) -> None:
    path = copy.path("samples.parquet")
    column = next(
        chunk
        for chunk in map(pq.read_metadata(path).row_group(0).column, range(pq.read_metadata(path).num_columns))
        if chunk.path_in_schema == "duration_ns"
    )
    data = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    data[start + column.total_compressed_size - 1] ^= 0x10
    path.write_bytes(bytes(data))


@mutation(Reason.EXTRA_FILE)
def listed_file_without_end(copy: WorkingCopy) -> None:
    """A file of no kind that the format has is listed; it is 64 GiB long and holds nothing."""
    with copy.path("weights.bin").open("wb") as file:
        file.truncate(1 << 36)
    _list_file(copy, "weights.bin")


@mutation(Reason.EXTRA_FILE, reseal=True)
def lookalike_listed(copy: WorkingCopy) -> None:
    """Another table of processes, its name with a Cyrillic letter, is sealed beside the real one."""
    copy.path("pr\u043ecesses.parquet").write_bytes(copy.path("processes.parquet").read_bytes())


MUTATIONS = collected(globals())

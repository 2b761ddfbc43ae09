"""The closed list of reasons for which a bundle is INVALID: one code, one meaning.

Rules:
1. Reasons are reported in stage order, within a stage in the order of this list, within a code in table order.
2. Every code is shown to fire by at least one mutation (``validator.mutations``) and to stay silent on a clean bundle.
3. ``SYNTHETIC`` is reported last and blocks no stage.
"""

from enum import StrEnum


class Stage(StrEnum):
    """The stages of a check, in the order in which they run."""

    INTEGRITY = "integrity"
    PROVENANCE = "provenance"
    SCHEMA = "schema"
    SCHEDULE = "schedule"
    PHYSICS = "physics"
    RECOMPUTE = "recompute"
    COMPARE = "compare"
    NATURE = "nature"


class Reason(StrEnum):
    """A reason code; ``stage``, ``meaning`` and ``remedy`` say the rest."""

    stage: Stage
    meaning: str
    remedy: str

    def __new__(cls, code: str, stage: Stage, meaning: str, remedy: str) -> "Reason":
        """Attach stage, meaning and remedy to the code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.stage = stage
        member.meaning = meaning
        member.remedy = remedy
        return member

    # integrity: the files are those that were sealed
    MANIFEST_MISSING = (
        "MANIFEST_MISSING",
        Stage.INTEGRITY,
        "the bundle has no manifest.json",
        "ask for the whole bundle: a run that was not sealed is no bundle",
    )
    MANIFEST_INVALID = (
        "MANIFEST_INVALID",
        Stage.INTEGRITY,
        "manifest.json is not a manifest of schema 1",
        "ask for the manifest as benchkit wrote it",
    )
    UNSAFE_PATH = (
        "UNSAFE_PATH",
        Stage.INTEGRITY,
        "a name leaves the bundle, is a link, or collides with another",
        "rebuild the bundle with plain, distinct file names",
    )
    OVERSIZED = (
        "OVERSIZED",
        Stage.INTEGRITY,
        "a member is larger, or unpacks to more, than the format allows",
        "ask for the file as benchkit wrote it: no honest run comes near these limits",
    )
    FILE_MISSING = (
        "FILE_MISSING",
        Stage.INTEGRITY,
        "a file that the manifest lists is not there",
        "ask for the missing file",
    )
    EXTRA_FILE = (
        "EXTRA_FILE",
        Stage.INTEGRITY,
        "a file is there that the manifest does not list",
        "remove the file, or ask where it comes from",
    )
    FILE_CHANGED = (
        "FILE_CHANGED",
        Stage.INTEGRITY,
        "a file differs from its digest in the manifest",
        "ask for the file as it was sealed",
    )
    FILE_UNREADABLE = (
        "FILE_UNREADABLE",
        Stage.INTEGRITY,
        "a file is truncated or cannot be parsed",
        "transfer the file again",
    )
    CONTENT_CHANGED = (
        "CONTENT_CHANGED",
        Stage.INTEGRITY,
        "the rows of a table differ from the content digest in the manifest",
        "ask for the table as it was sealed",
    )
    LEDGER_BROKEN = (
        "LEDGER_BROKEN",
        Stage.INTEGRITY,
        "the chain of attempts.jsonl does not verify, or lacks this run's start or end",
        "ask for the ledger as the run left it",
    )
    SIGNATURE_INVALID = (
        "SIGNATURE_INVALID",
        Stage.INTEGRITY,
        "a signature does not hold for the file that it stands beside",
        "ask for the signature of these bytes, or remove it: an unsigned bundle may be valid",
    )
    SIGNER_NOT_THE_EXPECTED = (
        "SIGNER_NOT_THE_EXPECTED",
        Stage.INTEGRITY,
        "manifest.json is not signed by the key given with --signed-by",
        "ask whose key it is",
    )
    # provenance: what was run is what was locked
    PROTOCOL_INVALID = (
        "PROTOCOL_INVALID",
        Stage.PROVENANCE,
        "protocol.toml, or an asset that a study takes its plans or fixture from, is none of schema 1",
        "run `benchkit check` on the protocol",
    )
    LOCK_MISSING = (
        "LOCK_MISSING",
        Stage.PROVENANCE,
        "the bundle has no protocol.lock",
        "an unlocked run proves nothing: lock, then run",
    )
    LOCK_INVALID = (
        "LOCK_INVALID",
        Stage.PROVENANCE,
        "protocol.lock is not a lock of schema 1",
        "ask for the lock as benchkit wrote it",
    )
    PROTOCOL_CHANGED = (
        "PROTOCOL_CHANGED",
        Stage.PROVENANCE,
        "the protocol's digest differs from the lock or the manifest",
        "ask for the protocol that was locked",
    )
    PLAN_CHANGED = (
        "PLAN_CHANGED",
        Stage.PROVENANCE,
        "the plan derived from the protocol differs from the locked one",
        "ask for the lock that belongs to the protocol",
    )
    PROTOCOL_NOT_THE_EXPECTED = (
        "PROTOCOL_NOT_THE_EXPECTED",
        Stage.PROVENANCE,
        "the bundle's protocol is not the one given with --protocol",
        "compare the two protocols",
    )
    LOCKED_AFTER_START = (
        "LOCKED_AFTER_START",
        Stage.PROVENANCE,
        "the run started more than an hour before the protocol was locked",
        "lock first, then run",
    )
    ASSET_CHANGED = (
        "ASSET_CHANGED",
        Stage.PROVENANCE,
        "an asset in the bundle differs from the digest in the protocol",
        "ask for the asset that was locked",
    )
    EXPLORATORY = (
        "EXPLORATORY",
        Stage.PROVENANCE,
        "the run is stamped exploratory",
        "run the locked protocol on a machine that satisfies it",
    )
    BUILD_MISMATCH = (
        "BUILD_MISMATCH",
        Stage.PROVENANCE,
        "what ran does not satisfy [build.require]",
        "run with the required build",
    )
    # schema: the tables are what the format says
    SCHEMA_COLUMN = (
        "SCHEMA_COLUMN",
        Stage.SCHEMA,
        "a table lacks a column, has another one, or another order",
        "write the table with the columns of results/README.md",
    )
    SCHEMA_TYPE = (
        "SCHEMA_TYPE",
        Stage.SCHEMA,
        "a column has another type",
        "write the column with the type of results/README.md (durations are int64 nanoseconds)",
    )
    SCHEMA_UNIT = (
        "SCHEMA_UNIT",
        Stage.SCHEMA,
        "a column declares another unit",
        "write the column in the unit of its name",
    )
    SCHEMA_NULL = (
        "SCHEMA_NULL",
        Stage.SCHEMA,
        "a column that may not be null holds a null",
        "ask for the missing value",
    )
    SCHEMA_VALUE = (
        "SCHEMA_VALUE",
        Stage.SCHEMA,
        "a value is outside what the column may hold, or footer keys contradict the manifest",
        "ask for the table as it was sealed",
    )
    # schedule: everything that was planned was done, in the planned order
    ENVIRONMENT_DRIFT = (
        "ENVIRONMENT_DRIFT",
        Stage.SCHEDULE,
        "environment, weights or binaries differ between the processes of the run",
        "run all processes on one machine with one build",
    )
    BOUNDARY_MISMATCH = (
        "BOUNDARY_MISMATCH",
        Stage.SCHEDULE,
        "clock, launch or event order differ from the lock",
        "time what the protocol says",
    )
    ROUTING_MISMATCH = (
        "ROUTING_MISMATCH",
        Stage.SCHEDULE,
        "the routing is not the one that the protocol derives",
        "run the locked routing",
    )
    PROCESS_MISSING = (
        "PROCESS_MISSING",
        Stage.SCHEDULE,
        "a planned process is not in the bundle, or one that was not planned is",
        "resume the run until every process has ended",
    )
    POINT_MISSING = (
        "POINT_MISSING",
        Stage.SCHEDULE,
        "a completed process lacks an operating point",
        "ask for all rows",
    )
    ARM_MISSING = (
        "ARM_MISSING",
        Stage.SCHEDULE,
        "a completed process lacks an arm at a point",
        "ask for all rows",
    )
    WARMUP_COUNT = (
        "WARMUP_COUNT",
        Stage.SCHEDULE,
        "the number of recorded warm-up samples differs from the lock",
        "run the locked warm-up",
    )
    CALLS_MISMATCH = (
        "CALLS_MISMATCH",
        Stage.SCHEDULE,
        "calls per sample differ from the lock",
        "run the locked number of calls",
    )
    ROWS_DUPLICATED = (
        "ROWS_DUPLICATED",
        Stage.SCHEDULE,
        "a sample stands more than once",
        "ask for the rows as they were sealed",
    )
    ROWS_MISSING = (
        "ROWS_MISSING",
        Stage.SCHEDULE,
        "planned samples are not there",
        "ask for all rows",
    )
    ORDER_NOT_AS_PLANNED = (
        "ORDER_NOT_AS_PLANNED",
        Stage.SCHEDULE,
        "the rows do not stand in the planned order",
        "run the planned order",
    )
    KERNEL_IDENTITY = (
        "KERNEL_IDENTITY",
        Stage.SCHEDULE,
        "an arm launched other kernels in another process",
        "find what chose another kernel",
    )
    CORRECTNESS_MISSING = (
        "CORRECTNESS_MISSING",
        Stage.SCHEDULE,
        "an arm was timed at a point without a correctness row",
        "check every arm before timing it",
    )
    # of a study: what was changed is what was planned, and the tensors are those that were kept
    MEMBERSHIP_MISMATCH = (
        "MEMBERSHIP_MISMATCH",
        Stage.SCHEDULE,
        "a stored plan is no alignment of the locked routing, or its digest or mode are not those of its rows",
        "ask for the plans as they were recorded",
    )
    TREATMENT_NOT_CONSUMED = (
        "TREATMENT_NOT_CONSUMED",
        Stage.SCHEDULE,
        "the marker of a process's treatment is not that of its planned history",
        "apply the history's treatment in its own processes, and mark what was applied",
    )
    ORDER_NOT_CONSUMED = (
        "ORDER_NOT_CONSUMED",
        Stage.SCHEDULE,
        "the order of routes that a process consumed is not the one of its cell",
        "run the order that the cell prescribes, and mark what was consumed",
    )
    GRID_NOT_CONSUMED = (
        "GRID_NOT_CONSUMED",
        Stage.SCHEDULE,
        "tiles, grid, classes or cut points that a process consumed are not those of its cell",
        "launch as the cell prescribes, and mark what was launched",
    )
    SURFACE_MISSING = (
        "SURFACE_MISSING",
        Stage.SCHEDULE,
        "a trajectory names a tensor that is not stored in the shape of its surface, or a tensor is stored that none names",
        "ask for all tensors as they were captured",
    )
    SURFACE_CHANGED = (
        "SURFACE_CHANGED",
        Stage.SCHEDULE,
        "a stored tensor does not have the digest that it is named by",
        "ask for the tensor as it was captured",
    )
    FIXTURE_MISMATCH = (
        "FIXTURE_MISMATCH",
        Stage.SCHEDULE,
        "the layer and input that ran are not those that the protocol's seeds derive",
        "run the locked fixture",
    )
    SURFACE_CONTRADICTION = (
        "SURFACE_CONTRADICTION",
        Stage.SCHEDULE,
        "a surface of a process does not follow from the one before it: final is not the sum of the routed one, the activation not that "
        "of W13, or a product not near that of the layer",
        "ask for the tensors as they were captured: one of the two is another run's",
    )
    # physics: what was recorded can have happened
    NON_POSITIVE_DURATION = (
        "NON_POSITIVE_DURATION",
        Stage.PHYSICS,
        "a duration is zero or negative",
        "find the fault of the clock; never drop the row",
    )
    TIME_DISORDER = (
        "TIME_DISORDER",
        Stage.PHYSICS,
        "times run backwards, overlap, or contradict each other",
        "ask for the rows as they were measured",
    )
    TICK_MISMATCH = (
        "TICK_MISMATCH",
        Stage.PHYSICS,
        "a duration is no whole number of the event clock's steps, where most are",
        "ask for the rows as they were measured: this number did not come from the clock",
    )
    STREAM_NOT_BLOCKED = (
        "STREAM_NOT_BLOCKED",
        Stage.PHYSICS,
        "a sample was timed on a stream that was not blocked, so launch latency is in it",
        "enqueue the whole sample before the stream is released",
    )
    ESCAPED_WORK = (
        "ESCAPED_WORK",
        Stage.PHYSICS,
        "work ran outside the events, or event times contradict host times",
        "record events on the stream that does the work",
    )
    CACHE_NOT_COLD = (
        "CACHE_NOT_COLD",
        Stage.PHYSICS,
        "the rotated weights do not exceed the locked multiple of the cache, a flush was too short to flush it, or the cache is smaller than the GPU's",
        "use more copies or more calls, and flush twice the cache",
    )
    BELOW_FLOOR = (
        "BELOW_FLOOR",
        Stage.PHYSICS,
        "a time is shorter than the bytes take at the memory's peak",
        "look for events recorded on another stream, or a cache-resident or empty measurement",
    )
    INJECTION_MISMATCH = (
        "INJECTION_MISMATCH",
        Stage.PHYSICS,
        "a delay stands where none was planned, or the positive control has another than the planned one",
        "inject in timed rows of the positive control alone, 1.5 margins of the baseline's warm-up",
    )
    TELEMETRY_FROZEN = (
        "TELEMETRY_FROZEN",
        Stage.PHYSICS,
        "clocks, temperature and power of a GPU are the same in hundreds of readings under load",
        "read the device's sensors: these numbers did not come from them",
    )
    CORRECTNESS_FAILED = (
        "CORRECTNESS_FAILED",
        Stage.PHYSICS,
        "an arm that was timed exceeds its locked tolerances",
        "mend the kernel",
    )
    # recompute and compare: the claims follow from the samples
    CONTROL_FAILED = (
        "CONTROL_FAILED",
        Stage.RECOMPUTE,
        "a control shows what noise cannot: the instrument is broken",
        "find the asymmetry between the arms",
    )
    ANALYSIS_INVALID = (
        "ANALYSIS_INVALID",
        Stage.COMPARE,
        "analysis.json is not an analysis of schema 1",
        "run `benchkit analyse` again",
    )
    ANALYSIS_STALE = (
        "ANALYSIS_STALE",
        Stage.COMPARE,
        "analysis.json belongs to another manifest",
        "run `benchkit analyse` again",
    )
    CLAIM_MISMATCH = (
        "CLAIM_MISMATCH",
        Stage.COMPARE,
        "a number or verdict in analysis.json does not follow from the samples",
        "run `benchkit analyse` again, and ask who changed it",
    )
    STOP_UNWARRANTED = (
        "STOP_UNWARRANTED",
        Stage.COMPARE,
        "the run ended before all planned pairs, at a look that does not show the claim",
        "resume the run, or run it again: a run may end early only at a locked look that shows the claim",
    )
    # nature
    SYNTHETIC = (
        "SYNTHETIC",
        Stage.NATURE,
        "the durations are scripted: no evidence",
        "measure on a real device",
    )

"""All mutations, in the order of the stages that reject them; the harmless ones last. A study has its own, and those of files and
lock that need no samples."""

from validator.mutations import claims, harmless, integrity, physics, provenance, schedule, schema, study
from validator.mutations.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *integrity.MUTATIONS,
    *provenance.MUTATIONS,
    *schema.MUTATIONS,
    *schedule.MUTATIONS,
    *physics.MUTATIONS,
    *claims.MUTATIONS,
    *harmless.MUTATIONS,
)
_OF_A_COMPARISON = frozenset(  # their subject is a sample, an arm, a margin or a timing
    [
        *("table-is-a-bomb", "listed-names-collide", "file-deleted", "protocol-edited", "samples-truncated"),
        *("samples-truncated-and-resealed", "bit-flipped", "bit-flipped-and-resealed", "sample-changed", "row-deleted"),
        *("row-duplicated", "rows-swapped", "correctness-changed", "protocol-with-unknown-key"),
        *("protocol-with-boolean-for-integer", "margin-widened", "warmup-lengthened", "locked-bytes-raised"),
        *("source-not-as-required", "relocked-after-the-run", "relocked-and-reordered", "peak-raised-after-the-run"),
        *("parquet-reencoded-and-resealed", "analysis-with-another-last-digit"),
    ]
)
_CLAIMS = ("analysis-truncated", "analysis-of-another-manifest")
STUDY_MUTATIONS: tuple[Mutation, ...] = (
    *(item for item in (*integrity.MUTATIONS, *provenance.MUTATIONS) if item.name not in _OF_A_COMPARISON),
    *(item for item in claims.MUTATIONS if item.name in _CLAIMS),
    *study.MUTATIONS,
    *(item for item in harmless.MUTATIONS if item.name not in _OF_A_COMPARISON),
)

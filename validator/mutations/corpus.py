"""All mutations, in the order of the stages that reject them; the harmless ones last."""

from validator.mutations import claims, harmless, integrity, physics, provenance, schedule, schema
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

"""The tampering corpus: what the validator must reject, and what it must not."""

from validator.mutations.corpus import MUTATIONS, STUDY_MUTATIONS
from validator.mutations.mutation import Mutation
from validator.mutations.selftest import SelftestResult, UncleanBundle, selftest

__all__ = ["MUTATIONS", "STUDY_MUTATIONS", "Mutation", "SelftestResult", "UncleanBundle", "selftest"]

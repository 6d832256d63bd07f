"""Sums in which earlier values count less."""

from tf_ti.decay.decayed_sum import decayed_sum

__all__ = ["decayed_sum"]

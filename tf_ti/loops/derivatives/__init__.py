"""Derivatives of loop ops: gradients, many lanes at once, and functions that are frozen."""

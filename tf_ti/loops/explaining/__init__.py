"""Accounts of what became of the loops of a function, and why not more."""

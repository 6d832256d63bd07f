"""Tracing: a callable becomes a graph, in a function, for an eager call, or Python runs it."""

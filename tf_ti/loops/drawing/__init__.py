"""Drawings of loops, as texts and pictures."""

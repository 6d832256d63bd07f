"""Measurements of tf_ti beside its peers: `python -m benchmarks --help`."""

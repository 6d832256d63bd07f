"""How tests run, where it matters: under sanitizers, one operation at a time, on busy cores."""

import os

import pytest

SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
# Seconds after which a process hangs, and is not just slow: cores may be busy.
HANGS = 1500 if SANITIZED else 400
measures_memory = pytest.mark.skipif(SANITIZED, reason="sanitizers keep memory that is freed")
runs_out_of_memory = pytest.mark.skipif(
    SANITIZED, reason="sanitizers end a process that asks for too much memory"
)
# TensorFlow's own functions hang where one of its threads waits for another.
ONE_OPERATION_AT_A_TIME = os.environ.get("TF_NUM_INTEROP_THREADS") == "1"

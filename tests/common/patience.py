"""What tests of other processes share: how long they wait, and whether sanitizers watch."""

import os

SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
# Seconds after which a process hangs, and is not just slow: cores may be busy.
HANGS = 1500 if SANITIZED else 400

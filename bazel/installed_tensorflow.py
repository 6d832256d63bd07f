"""Finds the installed TensorFlow without the seconds that importing it takes."""

import sys
from importlib.metadata import distributions

NAMES = ("tensorflow", "tensorflow-cpu")


def installed_tensorflow(path=None):
    """The distribution that provides TensorFlow on `path` (default: sys.path), or None."""
    search = {} if path is None else {"path": path}
    for name in NAMES:
        for distribution in distributions(name=name, **search):
            return distribution
    return None


if __name__ == "__main__":
    found = installed_tensorflow()
    # Another distribution, such as tf-nightly, is only known to be this Python's.
    what = f"{found.metadata['Name']} {found.version}" if found else "unknown"
    print(what, "in", found.locate_file("") if found else sys.prefix)

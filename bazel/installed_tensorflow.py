"""Finds the installed TensorFlow without the seconds that importing it takes."""

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
    print(found and f"{found.metadata['Name']} {found.version} in {found.locate_file('')}")

"""The version, which says for which TensorFlow the library was built."""

RELEASE = "0.1.0"
# Those that there is a wheel for.
TENSORFLOWS = ("2.17", "2.18", "2.19", "2.20", "2.21")


def minor_of(tensorflow: str) -> str:
    """The minor version of a TensorFlow: 2.21 of 2.21.0."""
    return ".".join(tensorflow.split(".")[:2])


def version_for(tensorflow: str, has_cuda: bool) -> str:
    """The version of the wheel for a TensorFlow: 0.1.0+tf2.21, or 0.1.0+tf2.21.cuda."""
    return f"{RELEASE}+tf{minor_of(tensorflow)}{'.cuda' if has_cuda else ''}"

"""The version, which says for which TensorFlow the library was built."""

RELEASE = "0.1.0"


def version_for(tensorflow: str, has_cuda: bool) -> str:
    """The version of the wheel for a TensorFlow: 0.1.0+tf2.21, or 0.1.0+tf2.21.cuda."""
    minor = ".".join(tensorflow.split(".")[:2])
    return f"{RELEASE}+tf{minor}{'.cuda' if has_cuda else ''}"

"""What is wrong with a file, and where in it."""


class IRError(ValueError):
    """An IR that cannot be used: its message names the file, the layer and the port."""

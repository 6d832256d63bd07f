"""What is wrong with a file, and where in it."""


class IRError(ValueError):
    """An IR that cannot be used: its message names the file, the layer and the port."""

    __init__ = Exception.__init__  # by which AutoGraph knows that it can raise it again, as this


def shown(text: object, most: int = 120) -> str:
    """What a file says, as a message quotes it: in quotes, and not at any length."""
    quoted = repr(text)
    return quoted if len(quoted) <= most else f"{quoted[: most - 20]}...{quoted[-10:]}"


def ascii_name(text: str, others: str = "_.-", most: int = 100) -> str:
    """A name that TensorFlow takes, near to one of the file; it begins with a letter."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in others) else "_" for c in text[:most])
    return kept if kept[:1].isalpha() else f"x{kept}"

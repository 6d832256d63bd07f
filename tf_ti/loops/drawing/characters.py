"""The characters of names that hold anything: how they are shown, and how wide that is."""

import unicodedata

# Of a font's size: Helvetica's widths, and a little more, for the fonts that stand in for it.
_NARROW, _SLIM, _USUAL, _BROAD, _WIDE = 0.29, 0.4, 0.6, 0.76, 1.0
_WIDTHS = {
    **dict.fromkeys("ijlI.,:;|!' ", _NARROW),
    **dict.fromkeys('frt()[]{}-"/\\`*^', _SLIM),
    **dict.fromkeys("mwABCDEFGHKNOPQRSTUVXYZ&+=<>~", _BROAD),
    **dict.fromkeys("MW@%…", _WIDE),
}


def visible(text: str) -> str:
    """One line, of characters that can be seen."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, length: int) -> str:
    """At most so many characters, of its beginning and its end."""
    if len(text) <= length:
        return text
    end = length // 2
    return f"{text[: length - end - 1]}…{text[len(text) - end :]}"


def width(text: str, size: float) -> float:
    """The width of a text, near enough, in a font of this size."""
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    if character in _WIDTHS or character.isascii():
        return _WIDTHS.get(character, _USUAL)
    if unicodedata.combining(character):
        return 0.0
    is_wide = unicodedata.east_asian_width(character) in "WF"
    return _WIDE if is_wide else _BROAD

"""The colours that all pictures share."""

INK, LINE, RED = "#1f2a36", "#44546a", "#b00020"
# A light ground, so that pictures can be read on light and on dark pages.
GROUND, EDGE = "#fcfcfa", "#c4c9d0"
# Of the nodes of diagrams, by their kinds.
KINDS = {
    "outside": "none",
    "limit": "#f8cbad",
    "iterator": "#bdd7ee",
    "recurrence": "#ffe699",
    "body": "#ffffff",
    "output": "#c6e0b4",
}
# Within a loop's box.
INSIDE = "#44546a0d"

"""The site: `make docs` builds it, and a warning is an error."""

import pathlib
import sys

import tf_ti

sys.path.append(str(pathlib.Path(__file__).parent))

project = "tf_ti"
author = "the authors of tf_ti"
copyright = author
version = release = tf_ti.__version__

extensions = [
    "docstrings",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]

# Pages.
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nitpicky = True
# Of other libraries, whose sites there is no network for, and type variables.
nitpick_ignore_regex = [("py:.*", r"(?!tf_ti).*"), ("py:class", r"tf_ti\..*\._[A-Z]\w*")]

# The tests run the notebooks, and hold what they show beside what is stored.
nb_execution_mode = "off"

# The reference.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"tf_ti {release}"
html_static_path = ["_static"]
html_css_files = ["tf_ti.css"]
# Teal: enough contrast for text on either background.
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b7285",
        "color-brand-content": "#0b7285",
        "color-brand-visited": "#5f3dc4",
        "color-api-name": "#0b7285",
        "color-api-pre-name": "#52606d",
        "tf-ti-code": "#f4f6f8",
    },
    "dark_css_variables": {
        "color-brand-primary": "#4fd1c5",
        "color-brand-content": "#4fd1c5",
        "color-brand-visited": "#b4a4f0",
        "color-api-name": "#4fd1c5",
        "color-api-pre-name": "#9aa5b1",
        "tf-ti-code": "#1b1f24",
    },
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "github-dark"
html_show_sphinx = False
html_copy_source = False
# Search would fetch the pages that it found, which browsers refuse where the site is in files.
html_show_search_summary = False
html_show_sourcelink = False
copybutton_exclude = ".linenos, .gp, .go"

"""Which folder knows which: no family another one, arithmetic no TensorFlow, nothing Keras."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
# What a family knows beside itself and what all share: others, and tf_ti as users see it.
FAMILIES = {
    "bags": set(),
    "loops": set(),
    "recurrent": {"loops"},
    "openvino": {"tf_ti"},
    "keras": {"tf_ti", "bags", "loops", "recurrent", "openvino"},
}
# The folders of cc/, and which of them each knows. Arithmetic is at the bottom.
LAYERS = {
    "compute": {"compute"},
    "kernels": {"compute", "kernels"},
    "ops": {"compute"},
    "xla": {"compute", "kernels", "xla"},
}
# These gather what there is.
GATHERERS = {
    "tf_ti/__init__.py",
    "tf_ti/__main__.py",
    "tf_ti/_self_check.py",
    "tf_ti/openvino/__main__.py",
}


def texts(folder, *suffixes):
    found = [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]
    assert found
    return [(str(path.relative_to(ROOT)), path.read_text()) for path in found]


def family_of(path):
    """The family whose file or module this is, or "" for what all share."""
    return next((name for name in re.split(r"[/.]", path) if name in FAMILIES), "")


def imports(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_modules_import_no_other_family_and_nothing_imports_keras():
    wrong = []
    for file, text in texts("tf_ti", ".py"):
        known = {"", family_of(file)} | FAMILIES.get(family_of(file), set())
        for name in imports(text) if file not in GATHERERS else ():
            used = family_of(name) if name.startswith("tf_ti.") else name
            if name.startswith("tf_ti") and used not in known:
                wrong.append(f"{file} -> {name}")
    assert wrong == []


def test_sources_include_no_other_family_and_no_higher_layer():
    wrong = []
    for file, text in texts("cc", ".cc", ".h"):
        layer = file.split("/")[1]
        for included in re.findall(r'^ *#include ["<](.*)[">]', text, re.M):
            if included.startswith("cc/") and included != "cc/status.h":
                is_right = family_of(included) in ("", family_of(file))
                is_right = is_right and included.split("/")[1] in LAYERS[layer]
            else:
                is_right = layer != "compute" or not re.match("tensorflow|xla|absl|cc/", included)
            if not is_right:
                wrong.append(f"{file} -> {included}")
    assert wrong == []

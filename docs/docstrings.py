"""Sphinx extension: tf_ti's docstrings, whose prose is Markdown, as reStructuredText.

Names appear as users write them, `tf_ti.scan`, and the types in signatures, which are named by the
module that defines them, link to them.
"""

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import stringify_signature

MODULES = ("tf_ti", "tf_ti.keras", "tf_ti.keras.optimizers", "tf_ti.openvino", "tf_ti.recurrent")
# The classes whose objects tf_ti makes: how it does so is nobody's business.
MADE_BY_TF_TI = ("IRModule", "Iterator", "Operation", "Output", "Recurrence", "State")

_KERAS_SECTIONS = [
    ("Call arguments", "params_style"),
    ("Input shape", "notes_style"),
    ("Output shape", "notes_style"),
]
_SECTION = re.compile(
    r"(Args|Attributes|Call arguments|Example|Input shape|Output shape|Raises|Returns):"
)
_CODE_SPAN = re.compile(r"`([^`]+)`(?=(\w?))")


def _to_span(match: re.Match) -> str:
    code, next_letter = match.groups()
    span = f":py:obj:`{code}`" if re.fullmatch(r"tf_ti(\.\w+)+", code) else f"``{code}``"
    return span + ("\\ " if next_letter else "")


def _joined(lines: list[str]) -> list[str]:
    """The lines, with the names of arguments that share a text on one of them."""
    joined: list[str] = []
    for line in lines:
        names = joined[-1] if joined else ""
        if re.fullmatch(r"    (\w+, )*\w+,", names) and line.startswith("        "):
            joined[-1] = f"{names} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _to_rest(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Makes code blocks of indented code, and links of tf_ti's names."""
    converted: list[str] = []
    section, in_code = "", False
    for line in _joined(lines):
        if line and not line[0].isspace():
            found = _SECTION.fullmatch(line)
            section, in_code = found[1] if found else "", False
        elif line.strip() and not in_code and section in ("", "Example"):
            language = "pycon" if line.lstrip().startswith(">>>") else "python"
            # A list's item goes on with fewer spaces.
            if line.startswith("    "):
                in_code = True
                indent = "    " if section else ""
                converted += [f"{indent}.. code-block:: {language}", ""]
        if in_code and section and line:
            line = "    " + line
        converted.append(line if in_code else _CODE_SPAN.sub(_to_span, line))
        if line == "Returns:":
            converted.append("    \\")  # or napoleon takes what is before a colon for a type
    lines[:] = converted


def _to_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: object, signature: str, returned: str
) -> tuple[str, str] | None:
    """Finds the signature of a layer, which Keras hides, and shows none where there is no use."""
    if what == "class" and name.rpartition(".")[2] in MADE_BY_TF_TI:
        return "", returned
    if what == "class" and signature == "(*args, **kwargs)":
        for owner in obj.__mro__:
            own = inspect.signature(vars(owner).get("__init__", _to_signature))
            parameters = list(own.parameters.values())[1:]
            if "__init__" in vars(owner) and parameters[0].kind != parameters[0].VAR_POSITIONAL:
                own = own.replace(parameters=parameters, return_annotation=own.empty)
                return stringify_signature(own, unqualified_typehints=True), returned
    if signature and "<object object" in signature:  # arguments with an unspeakable default
        return re.sub(r"<object object[^>]*>", "...", signature), returned
    return None


def _prefix_name(app: Sphinx, domain: str, kind: str, content: nodes.Element) -> None:
    """Puts the module before the name of a public object, as users write it."""
    for signature in content.parent.findall(addnodes.desc_signature):
        module = signature.get("module")
        if signature.parent is not content.parent or module not in MODULES:
            continue
        if not signature.get("class") and not any(signature.findall(addnodes.desc_addname)):
            name = next(signature.findall(addnodes.desc_name))
            prefix = f"{module}."
            name.parent.insert(name.parent.index(name), addnodes.desc_addname(prefix, prefix))


def _find_public_name(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, contents: nodes.Element
) -> nodes.Element | None:
    """Resolves a class of a signature, which is named by the module that defines it."""
    target = node.get("reftarget", "")
    name = target.rpartition(".")[2]
    if node.get("refdomain") != "py" or not target.startswith("tf_ti."):
        return None
    domain = env.get_domain("py")
    for module in MODULES:
        if name in importlib.import_module(module).__all__:
            found = domain.resolve_any_xref(
                env, node["refdoc"], app.builder, f"{module}.{name}", node, contents
            )
            if found:
                return found[0][1]
    return None


def _configure(app: Sphinx, config: Config) -> None:
    config.smartquotes_action = "D"  # dashes alone: "forward" and [..., n] are code
    config.napoleon_custom_sections = _KERAS_SECTIONS
    config.napoleon_use_param = False  # arguments that share a text stay together


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("config-inited", _configure)
    app.connect("autodoc-process-docstring", _to_rest, priority=100)  # before napoleon's
    app.connect("autodoc-process-signature", _to_signature)
    app.connect("object-description-transform", _prefix_name)
    app.connect("missing-reference", _find_public_name)
    return {"parallel_read_safe": True}

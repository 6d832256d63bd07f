"""The rooms of the source tree, and the arrows between them.

No family knows another one, no room a later one, arithmetic no TensorFlow, and nothing but keras/
Keras; and no modules import one another in a circle.
"""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
# The families that each knows, beside itself and the shared modules; tf_ti as users see it is one.
FAMILIES = {
    "bags": set(),
    "loops": set(),
    "recurrent": {"loops"},
    "accelerate": {"bags", "loops"},
    "openvino": {"tf_ti"},
    "keras": {"tf_ti", "bags", "loops", "recurrent", "openvino"},
}
# The rooms of tf_ti/loops/, modules and folders: each knows the earlier ones, and itself.
ROOMS = [
    ["drawing"],
    ["spec", "ports", "arguments"],
    ["slices"],
    ["tracing"],
    ["printed"],
    ["traced", "carried"],
    ["lower"],
    ["passes"],
    ["derivatives"],
    ["explaining"],
    ["call"],
    ["tensor_iterator", "scan", "while_loop", "block"],
]
# The folders of cc/, and which of them each knows. Arithmetic is at the bottom.
LAYERS = {
    "compute": {"compute"},
    "spec": {"compute", "spec"},
    "ops": {"spec", "ops"},
    "kernels": {"compute", "spec", "kernels"},
    "xla": {"compute", "spec", "kernels", "xla"},
}
# A specification sees no more of TensorFlow than shape functions, kernels and XLA all have.
SPECIFIED = "tensorflow/core/framework/(attr_value.pb|tensor_shape|types).h|absl/strings/"
# These gather what there is.
GATHERERS = {
    "tf_ti/__init__.py",
    "tf_ti/__main__.py",
    "tf_ti/_self_check.py",
    "tf_ti/accelerate/__main__.py",
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
            assert node.level == 0, f"a module's whole name tells its room: {ast.unparse(node)}"
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


def modules():
    """The modules of tf_ti but gatherers, by name, with the modules that each imports."""
    names = {}
    for file, text in texts("tf_ti", ".py"):
        if file in GATHERERS:
            continue
        names[file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = text
    found = {}
    for name, text in names.items():
        # An imported name is a module, or something in one.
        used = {i if i in names else i.rpartition(".")[0] for i in imports(text)}
        found[name] = sorted(used & set(names) - {name})
    return found


def test_no_room_of_loops_knows_a_later_one():
    place = {name: k for k, room in enumerate(ROOMS) for name in room}
    known, wrong = set(), []
    for module, used in modules().items():
        if module.startswith("tf_ti.loops."):
            room = module.split(".")[2]
            known.add(room)
            for other in used:
                later = other.startswith("tf_ti.loops.") and other.split(".")[2]
                if later and later != room and place[later] >= place[room]:
                    wrong.append(f"{module} -> {other}")
    assert wrong == []
    assert known == set(place)


def circle(graph):
    """Some nodes of a graph in a circle, or []."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node) :] + [node]
        if node not in done:
            path.append(node)
            for other in graph[node]:
                if found := visit(other):
                    return found
            path.pop()
            done.add(node)
        return []

    return next(filter(None, map(visit, graph)), [])


def test_no_modules_import_one_another_in_a_circle():
    assert circle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert circle(modules()) == []


def test_sources_include_no_other_family_and_no_higher_layer():
    wrong = []
    for file, text in texts("cc", ".cc", ".h"):
        layer = file.split("/")[1]
        for included in re.findall(r'^ *#include ["<](.*)[">]', text, re.M):
            if included.startswith("cc/") and included != "cc/status.h":
                is_right = family_of(included) in ("", family_of(file))
                is_right = is_right and included.split("/")[1] in LAYERS[layer]
            else:
                is_known = layer == "spec" and re.match(SPECIFIED, included)
                is_bound = re.match("tensorflow|xla|absl", included)
                is_right = layer not in ("compute", "spec") or not is_bound or bool(is_known)
            if included.startswith("gtest/"):
                is_right = file.endswith("_test.cc") or "/testing/" in file
            if not is_right:
                wrong.append(f"{file} -> {included}")
    assert wrong == []


def test_programs_of_bodies_know_no_gpu():
    # They are compiled once for all devices: see BUILD.
    for file, text in texts("cc/kernels/loops/lowering", ".cc", ".h"):
        assert not re.search(r"GOOGLE_CUDA|gpu\.h", text), file

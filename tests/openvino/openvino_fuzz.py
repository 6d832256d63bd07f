"""Loads mutated IR files: whatever they say, the error must be one that a caller may expect.

python openvino_fuzz.py [COUNT] [FIRST_SEED]
"""

import copy
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from xml.etree import ElementTree

import numpy as np
import tensorflow as tf

import tf_ti.openvino

EXPECTED = (ValueError, TypeError, tf.errors.OpError)  # an IRError is a ValueError
_SECONDS = 60  # a mutated file may not take longer
_NUMBERS = [*"-1 0 1 2 3 7 255 100000".split(), *(str(2**n) for n in (30, 31, 60, 63))]
_WORDS = ["", "x", "1.5", "nan", "1,2", "?", "...", "-1..3", "\u0436", "x" * 5000, "FP16", "i64"]
_LARGEST = 1 << 20  # numbers in an input


def save_models(folder):
    """The .xml files, as texts, and their .bin files."""
    # In another process, as OpenVINO does not survive the sanitizers that this one may run under.
    subprocess.run(
        [sys.executable, pathlib.Path(__file__).with_name("openvino_fuzz_models.py"), folder],
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        check=True,
    )
    paths = sorted(pathlib.Path(folder).glob("*.xml"))
    return [(path.read_bytes(), path.with_suffix(".bin").read_bytes()) for path in paths]


def _mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        kind = rng.integers(4)
        if kind == 0:
            data[at : at + 1] = rng.bytes(1)
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 50))]
        elif kind == 2:
            data[at:at] = data[: int(rng.integers(100))]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def _mutate_number(rng, data):
    """Another number in the place of one of the text's."""
    places = list(re.finditer(rb"[0-9]+", data))
    place = places[int(rng.integers(len(places)))]
    return data[: place.start()] + str(rng.choice(_NUMBERS)).encode() + data[place.end() :]


def _mutate_tree(rng, data):
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return data
    elements = list(root.iter())
    parents = [element for element in elements if len(element)]
    parent = parents[int(rng.integers(len(parents)))]
    at = int(rng.integers(len(parent)))
    element = elements[int(rng.integers(len(elements)))]
    kind = rng.integers(6)
    if kind == 0:
        del parent[at]
    elif kind == 1:
        parent.insert(at, copy.deepcopy(parent[at]))
    elif kind == 2 and element is not root:
        parent.insert(at, copy.deepcopy(element))
    elif kind == 3 and element.attrib:
        del element.attrib[str(rng.choice(list(element.attrib)))]
    elif element.attrib:
        values = [value for each in elements for value in each.attrib.values()]
        values = [*_NUMBERS, *_WORDS] if kind == 4 else values
        name = str(rng.choice(list(element.attrib)))
        element.set(name, values[int(rng.integers(len(values)))])
    return ElementTree.tostring(root, encoding="utf-8")


def _mutate(rng, text, weights):
    for _ in range(rng.integers(1, 4)):
        kind = rng.random()
        if kind < 0.15:
            text = _mutate_bytes(rng, text)
        elif kind < 0.5:
            text = _mutate_number(rng, text) if re.search(rb"[0-9]", text) else text
        elif kind < 0.93:
            text = _mutate_tree(rng, text)
        else:
            weights = _mutate_bytes(rng, weights)
    return text, weights


def _may_be_endless(module):
    """True if a number may be that of a loop's iterations, more than can be waited for."""
    numbers = [value for value in module.constants.values.values() if value.dtype.kind in "iu"]
    return any(np.any(np.abs(value.astype(np.float64)) > 1e5) for value in numbers)


def _call(rng, module):
    if _may_be_endless(module):
        return
    arrays = []
    for info in module.inputs:
        rank = 2 if info.shape.rank is None else info.shape.rank
        shape = [2 if n is None else n for n in (info.shape if info.shape.rank else [None] * rank)]
        if rank > 32 or np.prod([float(n) for n in shape]) > _LARGEST:
            return
        numbers = rng.integers(0, 2, shape) if info.dtype.is_bool else rng.integers(0, 4, shape)
        arrays.append(tf.constant(numbers.astype(info.dtype.as_numpy_dtype)))
    module(*arrays)


def _too_slow(*_):
    raise RuntimeError(f"a mutated file takes more than {_SECONDS} s")


def attempt(models, seed, folder):
    """One mutation: "loads", "runs", or the name of the error, which is an expected one."""
    rng = np.random.default_rng(seed)
    text, weights = _mutate(rng, *models[int(rng.integers(len(models)))])
    path = os.path.join(folder, "mutated.xml")
    for name, data in (path, text), (path[:-3] + "bin", weights):
        with open(name, "wb") as file:
            file.write(data)
    signal.alarm(_SECONDS)
    try:
        module = tf_ti.openvino.load(path, trainable=bool(seed % 2))
    except tf_ti.openvino.IRError as error:
        assert path in str(error) or path[:-3] + "bin" in str(error), error
        return "refused"
    finally:
        signal.alarm(0)
    signal.alarm(_SECONDS)
    try:
        _call(rng, module)
    except EXPECTED as error:
        return f"loads, {type(error).__name__}"
    finally:
        signal.alarm(0)
    return "runs"


def main(count=200, first=0):
    signal.signal(signal.SIGALRM, _too_slow)
    outcomes, failed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        models = save_models(folder)
        for seed in range(first, first + count):
            print(seed, file=sys.stderr, flush=True)  # a crash leaves the number
            try:
                outcome = attempt(models, seed, folder)
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print(f"seed {seed} fails", flush=True)
                failed += 1
                continue
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{count} mutations, {failed} failures: {outcomes}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))

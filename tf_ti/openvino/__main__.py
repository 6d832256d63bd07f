"""`python -m tf_ti.openvino`: converts IRs to models of TensorFlow and back, lists, checks."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino import IRError, load, save
from tf_ti.openvino.check import Settings, check, summary, table
from tf_ti.openvino.evaluation import unsupported
from tf_ti.openvino.listing import listing, write_drawings
from tf_ti.openvino.model import Graph
from tf_ti.openvino.progress import Watcher, watched_by
from tf_ti.openvino.reader import read

# A model with more layers or more bytes gets a progress bar.
_MANY_LAYERS = 200
_MANY_BYTES = 100 << 20

_EPILOG = """\
exit codes: 0 all went well, 1 something is wrong with a model, or --check found a difference,
2 the command line is wrong. Nothing is written unless the exit code is 0.

On a terminal, large models get a progress bar where tqdm is installed (pip install tqdm).
"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    _check_usage(parser, arguments)
    all_agree = True
    for model in arguments.models:
        try:
            with watched_by(_progress_bar(_weights_of(model, arguments))):
                all_agree = _process(model, arguments) and all_agree
        except BrokenPipeError:
            raise
        except (IRError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            all_agree = False
    return 0 if all_agree else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tf_ti.openvino",
        description="Reads models in OpenVINO's IR, version 10 or 11, and writes others as IR.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="the models to read: .xml files; or one .keras file, or SavedModel, to write as IR",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="the weights; by default the .bin file beside MODEL.xml"
    )
    parser.add_argument(
        "--output", metavar="PATH", type=_path, help="write a SavedModel; if it ends in .xml, IR"
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="of a SavedModel; by default serving_default"
    )
    parser.add_argument("--keras", metavar="FILE.keras", type=_path, help="write a Keras model")
    parser.add_argument(
        "--trainable",
        action="store_true",
        help="floating constants become variables; those of a .keras model are not frozen",
    )
    listed = parser.add_argument_group("contents of a model")
    listed.add_argument(
        "--inspect",
        action="store_true",
        help="list layers, ports and states, and draw the loops",
    )
    listed.add_argument("--constants", action="store_true", help="list constants too")
    listed.add_argument(
        "--drawings", metavar="DIR", type=_path, help="write the loops as graphviz sources"
    )
    compared = parser.add_argument_group("comparison")
    compared.add_argument(
        "--check", action="store_true", help="compare with OpenVINO, on random inputs"
    )
    compared.add_argument(
        "--seed", type=int, help="of the inputs; by default another one each time"
    )
    compared.add_argument(
        "--shape",
        metavar="NAME=1,3,?",
        type=_shape,
        action="append",
        default=[],
        help="the shape of an input with unknown dimensions; by default these, and each ?, are 2, "
        "or 8, 32 or 128 if 2 is too small; without a name, of the only input",
    )
    compared.add_argument(
        "--rtol", type=_tolerance, help="relative; by default it depends on dtypes"
    )
    compared.add_argument("--atol", type=_tolerance, help="absolute; likewise")
    return parser


def _path(text: str) -> pathlib.Path:
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return pathlib.Path(os.path.realpath(text))


def _shape(text: str) -> tuple[str | None, tuple[int | None, ...]]:
    name, separator, shape = text.rpartition("=")
    is_shape = re.fullmatch(r"(([0-9]{1,9}|\?)(,([0-9]{1,9}|\?))*)?", shape)
    if not is_shape or (not name and (separator or not shape)):
        raise argparse.ArgumentTypeError(f"{text!r} is neither like NAME=1,3,? nor like 1,3,?")
    return name or None, tuple(None if n == "?" else int(n) for n in shape.split(",") if n)


def _tolerance(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is below 0")
    return value


def _check_usage(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    written = {
        f"--{name}": path
        for name in ("output", "keras", "drawings")
        if (path := getattr(arguments, name)) is not None
    }
    if not (written or arguments.inspect or arguments.check):
        parser.error("nothing to do: give --output, --keras, --inspect, --drawings or --check")
    if len(arguments.models) > 1 and (written or arguments.weights):
        parser.error("several models can be given to --inspect and --check alone")
    if not all(map(_is_ir, arguments.models)):
        _check_conversion(parser, arguments)
    elif arguments.signature is not None:
        parser.error("--signature is for a SavedModel")
    if arguments.constants and not arguments.inspect:
        parser.error("--constants is for --inspect")
    if arguments.seed is not None and arguments.seed < 0:
        parser.error("--seed must not be negative")
    if not arguments.check:
        for name in ("seed", "shape", "rtol", "atol"):
            if getattr(arguments, name) not in (None, []):
                parser.error(f"--{name} is for --check")
    if arguments.keras and arguments.keras.suffix != ".keras":
        parser.error(f"--keras: {arguments.keras} does not end in .keras")
    if len(set(written.values())) < len(written):
        parser.error(f"{' and '.join(written)} name the same path")
    for option, path in written.items():
        for other, folder in written.items():
            if folder in path.parents:
                parser.error(f"{option}: {path} is in {folder}, which {other} writes")
    for option, path in written.items():
        if not path.parent.is_dir():
            parser.error(f"{option}: there is no directory {path.parent}")
        if option == "--keras" and path.exists():
            parser.error(f"{option}: {path} exists")
        if _writes_ir(path):
            for file in path, path.with_suffix(".bin"):
                if file.exists():
                    parser.error(f"{option}: {file} exists")
        elif path.exists() and not (path.is_dir() and not any(path.iterdir())):
            parser.error(f"{option}: {path} exists and is no empty directory")


def _check_conversion(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Checks the arguments beside a model that is to be written as IR."""
    (model, *others) = arguments.models
    if others or arguments.output is None or not _writes_ir(arguments.output):
        parser.error(f"{model} is no .xml file: it takes --output MODEL.xml, which writes it as IR")
    for name in ("weights", "keras", "trainable", "inspect", "drawings"):
        if getattr(arguments, name):
            parser.error(f"--{name} is for .xml files")
    if arguments.signature is not None and not os.path.isdir(model):
        parser.error("--signature is for a SavedModel")


def _is_ir(model: str) -> bool:
    return not (model.endswith((".keras", ".h5")) or os.path.isdir(model))


def _writes_ir(path: pathlib.Path) -> bool:
    return path.suffix == ".xml"


def _weights_of(model: str, arguments: argparse.Namespace) -> str:
    return arguments.weights or os.path.splitext(model)[0] + ".bin"


def _process(model: str, arguments: argparse.Namespace) -> bool:
    """Does all that the command asks of one model. Returns false if OpenVINO disagrees."""
    if not _is_ir(model):
        with _unfinished(arguments.output) as file:
            _write_ir(model, arguments.signature, file)
            agrees = _checked(str(file), str(arguments.output), arguments)
            if agrees:
                _move(file, arguments.output)
        return agrees
    graph = read(model) if arguments.inspect or arguments.drawings else None
    if graph is not None and arguments.inspect:
        print(listing(graph, arguments.constants))
        problem = _problem(model, graph, arguments)
        if problem is not None:
            print(f"\nload refuses it: {problem}")
    if not _checked(model, model, arguments):
        return False
    with contextlib.ExitStack() as stack:
        # All of these are written, or none is.
        if arguments.output and _writes_ir(arguments.output):
            file = stack.enter_context(_finished_as(arguments.output))
            save(load(model, arguments.weights), file)
        elif arguments.output:
            folder = stack.enter_context(_finished_as(arguments.output))
            module = load(model, arguments.weights, arguments.trainable)
            tf.saved_model.save(module, str(folder))
        if arguments.keras:
            file = stack.enter_context(_finished_as(arguments.keras))
            _keras_model(model, arguments).save(file)
        if graph is not None and arguments.drawings:
            folder = stack.enter_context(_finished_as(arguments.drawings))
            folder.mkdir()
            write_drawings(graph, folder)
    return True


def _checked(model: str, name: str, arguments: argparse.Namespace) -> bool:
    """Compares a file with OpenVINO, if that is asked for. Returns false if they differ."""
    if not arguments.check:
        return True
    settings = Settings(arguments.seed, dict(arguments.shape), arguments.rtol, arguments.atol)
    checked = dataclasses.replace(check(model, arguments.weights, settings), path=name)
    print(table(checked) if len(arguments.models) == 1 else summary(checked))
    return checked.agrees


def _write_ir(model: str, signature: str | None, file: pathlib.Path) -> None:
    """Writes a SavedModel, or a model of Keras in a file, as IR."""
    function = loaded = _loaded(model)  # a SavedModel has the names of its variables
    if os.path.isdir(model):
        name = signature or "serving_default"
        if name not in loaded.signatures:
            known = ", ".join(map(repr, loaded.signatures)) or "none"
            raise IRError(f"{model}: has no signature {name!r}; its signatures are: {known}")
        function = loaded.signatures[name]
    try:
        save(function, file)
    except (TypeError, ValueError) as error:
        if isinstance(error, IRError):
            raise
        raise IRError(f"{model}: cannot be written as IR: {error}") from error


def _loaded(model: str) -> Any:
    try:
        if os.path.isdir(model):
            _tf.drop_optimizers()
            return tf.saved_model.load(model)
        import keras

        return keras.saving.load_model(model, compile=False)
    except Exception as error:  # damaged files give errors of all kinds
        raise IRError(f"{model}: cannot be read: {error}") from error


def _problem(model: str, graph: Graph, arguments: argparse.Namespace) -> IRError | None:
    """Why a model cannot be loaded, as far as its weights are there and the list does not say."""
    if unsupported(graph) or not os.path.isfile(_weights_of(model, arguments)):
        return None
    try:
        load(model, arguments.weights)
    except IRError as error:
        return error
    return None


def _keras_model(model: str, arguments: argparse.Namespace) -> Any:
    try:
        from tf_ti import keras
    except (ImportError, RuntimeError) as error:
        raise IRError(f"--keras: {error}") from error
    layer = keras.OpenVINO(model, arguments.weights, trainable=arguments.trainable)
    return layer.to_model()


@contextlib.contextmanager
def _finished_as(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A temporary path to write to. It is renamed to `path` if nothing goes wrong."""
    with _unfinished(path) as unfinished:
        yield unfinished
        _move(unfinished, path)


@contextlib.contextmanager
def _unfinished(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A path of the same name in a temporary folder beside it."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name[:50]}.", dir=path.parent) as folder:
        yield pathlib.Path(folder) / path.name


def _move(unfinished: pathlib.Path, path: pathlib.Path) -> None:
    if _writes_ir(path) and unfinished.is_file():  # and no folder of that name
        os.replace(unfinished.with_suffix(".bin"), path.with_suffix(".bin"))
    os.replace(unfinished, path)


def _progress_bar(weights: str) -> Watcher:
    """Progress bars for long stages, if there are a terminal, a large model and tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return lambda stage, items: items
    is_heavy = os.path.isfile(weights) and os.path.getsize(weights) > _MANY_BYTES
    is_shown = sys.stderr.isatty()
    has_bar = False

    def watch(stage: str, items: Collection[Any]) -> Iterable[Any]:
        nonlocal has_bar
        # Bodies of loops have no bars of their own.
        if not is_shown or has_bar or not (is_heavy or len(items) > _MANY_LAYERS):
            yield from items
            return
        has_bar = True
        try:
            yield from tqdm(items, stage, leave=False)
        finally:
            has_bar = False

    return watch


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")  # TensorFlow warns of tracing model after model
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # of a reader that has enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)

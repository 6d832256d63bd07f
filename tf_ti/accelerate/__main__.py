"""`python -m tf_ti.accelerate`: runs a program whose loops, and look-ups, are tf_ti's."""

import argparse
import atexit
import os
import runpy
import sys

import tf_ti


def _print_report() -> None:
    print(f"\nWhat was traced\n{tf_ti.accelerate.report()}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tf_ti.accelerate",
        usage="%(prog)s [-h] [--report] [--lookups] (FILE.py | -m MODULE) [ARGUMENTS]",
        description="Runs a program of Python, or a module, whose loops run as tf_ti's.",
    )
    parser.add_argument(
        "--report", action="store_true", help="say at the end what became of each loop"
    )
    parser.add_argument(
        "--lookups", action="store_true", help="look up embeddings of sparse ids by tf_ti, too"
    )
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, default=[], help="run a module, not a file"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="FILE.py ARGUMENTS",
        help="the program, and what it gets",
    )
    given = parser.parse_args()
    program = [*given.module, *given.program]
    if program[:1] == ["--"]:  # argparse leaves it there
        del program[0]
    if not program:
        parser.error("a file, or -m and a module, is needed")
    if given.report:
        atexit.register(_print_report)
    tf_ti.accelerate(lookups=given.lookups)
    sys.argv = program
    if given.module:
        sys.path[0] = os.getcwd()
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.realpath(program[0]))
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()

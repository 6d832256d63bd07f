"""Takes files to a machine without the internet, in parts.

    python3 gpu_check/parts.py split FILE... --to FOLDER [--size MIB]
    python3 gpu_check/parts.py join FOLDER --to FOLDER

`split` cuts files, such as the wheels of `pip download`, into parts of at most 60 MiB, and writes
parts.json, the list of each file's parts and of their SHA-256. Parts travel in any order, one at a
time if need be. `join` makes the files again, and reports parts that are missing or damaged.
"""

import argparse
import hashlib
import json
import pathlib
import sys

CONTENTS = "parts.json"
MIB = 2**20


class Wrong(Exception):
    """An error in files or parts."""


def split(files: list[pathlib.Path], folder: pathlib.Path, size: int) -> list[pathlib.Path]:
    """Cuts files into parts of at most `size` bytes in a folder. Returns the parts."""
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        raise Wrong("several files have one name")
    folder.mkdir(parents=True, exist_ok=True)
    contents, parts = {}, []
    for file in files:
        of_file = []
        with file.open("rb") as stream:
            while piece := stream.read(size):
                part = folder / f"{file.name}.part{len(of_file):03}"
                part.write_bytes(piece)
                of_file.append({"name": part.name, "sha256": hashlib.sha256(piece).hexdigest()})
                parts.append(part)
        contents[file.name] = of_file
    (folder / CONTENTS).write_text(json.dumps(contents, indent=1), encoding="utf-8")
    return parts


def join(folder: pathlib.Path, to: pathlib.Path) -> list[pathlib.Path]:
    """Makes the files of their parts again. Returns them."""
    path = folder / CONTENTS
    if not path.exists():
        raise Wrong(f"{path} is missing")
    contents = json.loads(path.read_text(encoding="utf-8"))
    problems = []
    for part in (part for parts in contents.values() for part in parts):
        path = folder / part["name"]
        if not path.exists():
            problems.append(f"{part['name']} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != part["sha256"]:
            problems.append(f"{part['name']} is damaged")
    if problems:
        raise Wrong("\n".join(problems))
    to.mkdir(parents=True, exist_ok=True)
    for name, parts in contents.items():
        with (to / name).open("wb") as stream:
            for part in parts:
                stream.write((folder / part["name"]).read_bytes())
    return [to / name for name in contents]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split", help="cut files into parts")
    splitting.add_argument("files", metavar="FILE", nargs="+", type=pathlib.Path)
    splitting.add_argument("--size", metavar="MIB", type=int, default=60, help="(default: 60)")
    joining = commands.add_parser("join", help="make the files again")
    joining.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    for command in (splitting, joining):
        command.add_argument("--to", metavar="FOLDER", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    try:
        if arguments.command == "split":
            if arguments.size < 1:
                raise Wrong("--size must be at least 1")
            made = split(arguments.files, arguments.to, arguments.size * MIB)
        else:
            made = join(arguments.folder, arguments.to)
    except (Wrong, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(made)} files in {arguments.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

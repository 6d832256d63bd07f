"""The notebooks of the site print what is stored in them.

Each runs in a folder of its own. Texts must be the same. Numbers with a decimal point, which depend
on the processor, must be close.
"""

import pathlib
import re

import pytest
from patience import HANGS

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = pathlib.Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
DECIMAL = re.compile(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?")


def shown(cell):
    """What a cell prints, and the text and picture of what it returns. Warnings are left out."""
    texts = []
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            texts.append(output.text)
        elif output.output_type in ("execute_result", "display_data"):
            data = output.data
            texts += [f"{data.get(kind, '')}\n" for kind in ("text/plain", "image/svg+xml")]
    return "".join(texts)


def check_shown(found, expected, where):
    assert DECIMAL.sub("*", found) == DECIMAL.sub("*", expected), where
    numbers, expected_numbers = (
        [float(number) for number in DECIMAL.findall(text)] for text in (found, expected)
    )
    assert numbers == pytest.approx(expected_numbers, rel=0.05, abs=0.05), f"{where}:\n{found}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_is_stored(path, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # nobody's own settings
    stored = nbformat.read(path, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    folder = tmp_path / "notebook"
    folder.mkdir()
    client = nbclient.NotebookClient(
        notebook,
        timeout=HANGS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()  # an error in a cell is raised
    for i, (cell, stored_cell) in enumerate(zip(notebook.cells, stored.cells)):
        if cell.cell_type == "code":
            check_shown(shown(cell), shown(stored_cell), f"{path.name}, cell {i}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(cell.metadata for cell in notebook.cells)
    assert not any(output.get("name") == "stderr" for cell in code for output in cell.outputs)

"""`python -m benchmarks --report`: what it draws and refuses, and what README and the site hold."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import tf_ti  # noqa: F401  Before the checkout's path comes first: the one that is tested.

ROOT = pathlib.Path(__file__).parents[2]
README = "Before.\n\n<!-- figures: begin -->\nold\n<!-- figures: end -->\n\nAfter.\n"
MACHINE = {"processor": "A processor", "cores": 2, "instructions": "AVX2"}
VERSIONS = {"Python": "3.11.7", "tf_ti": "0.1.0", "torch": "2.13.0"}


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    """The package, which is in the checkout and not in the wheel."""
    pytest.importorskip("matplotlib")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield


@pytest.fixture
def report():
    from benchmarks import report

    return report


@pytest.fixture
def folder(report, tmp_path):
    """JSON of three families with a row for each of README's jobs, a curve and a roofline."""
    from benchmarks import harness

    rows = {"tf.nn.slow": 50.0, "torch": 20.0, "JAX": 30.0, "rows read only": 5.0}
    tables = []
    for job in report.JOBS:
        columns = [job.column] if job.column else ["a", "b", "c", "d", "e"]
        names = {job.ours: 10.0, **rows, **({job.tensorflow: 100.0} if job.tensorflow else {})}
        figures = {name: [value] * len(columns) for name, value in names.items()}
        tables.append(
            harness.Table(
                f"A title of {job.picture}", "us", columns, figures, job.ours, picture=job.picture
            )
        )
    curve = harness.Table(
        "Curves by T", "us", ["1", "10"], {"tf_ti": [1.0, 2.0], "torch": [3.0, None]},
        picture="curve", kind=harness.CURVES, x="T",
    )  # fmt: skip
    points = {"limit": [None, 9.0, None], "limit 2": [None, None, 4.0], "bags": [0.25, 0.5, 2.0]}
    roof = harness.Table(
        "Roofline", "", ["flop a byte", "Gflop/s", "GB/s"], points,
        picture="roof", kind=harness.ROOFLINE,
    )  # fmt: skip
    plain = harness.Table("A table | that nobody draws", "us", ["*"], {"one": [1.0]})
    path = tmp_path / "json"
    path.mkdir()
    for family, own in (("bags", tables), ("curves", [curve, plain]), ("roofline", [roof])):
        run = {
            "machine": MACHINE,
            "versions": VERSIONS,
            "date": "2026-01-02",
            "command": f"python -m benchmarks {family} --quick",
            "tables": list(map(dataclasses.asdict, own)),
        }
        (path / f"{family}.json").write_text(json.dumps(run))
    return path


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    (path / "README.md").write_text(README)
    return path


FAMILIES = ("bags", "curves", "roofline")


def change(folder, family, **entries):
    path = folder / f"{family}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def error_of(report, folder, root):
    """The message with which the report refuses, after which nothing is written."""
    before = (root / "README.md").read_text()
    with pytest.raises(report.ReportError) as error:
        report.write(folder, FAMILIES, root)
    assert (root / "README.md").read_text() == before
    assert not (root / "docs").exists()
    return str(error.value)


def test_two_machines_are_refused_by_name(report, folder, root):
    change(folder, "curves", machine=MACHINE | {"processor": "Another one"})
    message = error_of(report, folder, root)
    assert "more than one machine" in message
    assert "A processor, 2 cores, AVX2 (bags, roofline)" in message
    assert "Another one, 2 cores, AVX2 (curves)" in message


@pytest.mark.parametrize("entry", [{"cores": 1}, {"instructions": "AVX-512"}])
def test_other_cores_and_instructions_are_another_machine(report, folder, root, entry):
    change(folder, "roofline", machine=MACHINE | entry)
    assert "more than one machine" in error_of(report, folder, root)


def test_two_versions_of_a_package_are_refused_by_name(report, folder, root):
    change(folder, "bags", versions=VERSIONS | {"torch": "2.12.0"})
    message = error_of(report, folder, root)
    assert "version of torch: 2.12.0 (bags); 2.13.0 (curves, roofline)" in message


def test_a_package_that_was_not_always_there_is_refused(report, folder, root):
    change(folder, "bags", versions=VERSIONS | {"jax": "1"})
    assert "version of jax: 1 (bags); none (curves, roofline)" in error_of(report, folder, root)


def test_a_family_without_figures_is_named_with_its_command(report, folder, root):
    (folder / "curves.json").unlink()
    (folder / "roofline.json").unlink()
    report.write(folder, FAMILIES, root)
    page = (root / "docs/figures/index.md").read_text()
    assert "`python -m benchmarks curves roofline` does" in page
    assert "## Roofline" not in page


def test_a_family_of_which_readme_has_a_row_must_have_figures(report, folder, root):
    (folder / "bags.json").unlink()
    assert "of which README's has a row" in error_of(report, folder, root)


def test_json_of_an_older_version_is_refused(report, folder, root):
    (folder / "bags.json").write_text('{"machine": "A processor, 2 CPUs", "tables": []}')
    message = error_of(report, folder, root)
    assert "bags.json" in message and "`python -m benchmarks bags`" in message


@pytest.mark.parametrize("marker", ["<!-- figures: begin -->", "<!-- figures: end -->"])
def test_a_readme_without_a_marker_is_refused(report, folder, root, marker):
    (root / "README.md").write_text(README.replace(marker, ""))
    assert marker in error_of(report, folder, root)


def test_a_row_that_readme_shows_and_nobody_measured_is_refused(report, folder, root):
    run = json.loads((folder / "bags.json").read_text())
    del run["tables"][0]["rows"][report.JOBS[0].ours]
    change(folder, "bags", tables=run["tables"])
    assert f"{report.JOBS[0].picture} lacks {report.JOBS[0].ours}" in error_of(report, folder, root)


def test_readme_has_a_row_for_each_job_between_its_markers(report, folder, root):
    report.write(folder, FAMILIES, root)
    text = (root / "README.md").read_text()
    before, table, after = re.split(r"<!-- figures: (?:begin|end) -->", text)
    assert (before, after) == ("Before.\n\n", "\n\nAfter.\n")
    lines = table.strip().splitlines()
    assert len(lines) == 2 + 8 + 2
    # The best of the others is the fastest that is neither tf_ti, nor TensorFlow, nor a limit.
    assert all("| 10.00 us | torch: 2.0x |" in line for line in lines[2:10])
    assert [line.endswith(": 10x |") for line in lines[2:10]] == [True] * 7 + [False]
    assert "A processor, 2 cores, AVX2; 2026-01-02" in lines[-1]
    assert "`python -m benchmarks bags --quick`" in lines[-1]


def test_a_second_report_writes_the_same_bytes(report, folder, root):
    def contents():
        paths = report.write(folder, FAMILIES, root)
        return {path: path.read_bytes() for path in paths}

    first = contents()
    assert contents() == first
    for path, content in first.items():
        assert len(content) < 100_000, path


def test_the_page_has_each_picture_its_table_and_its_command(report, folder, root):
    paths = report.write(folder, FAMILIES, root)
    page = (root / "docs/figures/index.md").read_text()
    pictures = [path for path in paths if path.suffix == ".svg"]
    assert len(pictures) == 8 + 2
    for path in pictures:
        assert page.count(f"{{figure}} {path.name}") == 1
        assert xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg")
        assert "<dc:date>" not in path.read_text() and "Matplotlib v" not in path.read_text()
    assert page.count("{dropdown}") == len(pictures) + 1
    for family in FAMILIES:
        assert f"`python -m benchmarks {family} --quick`" in page
    # What Markdown would take for its own.
    assert r"A table \| that nobody draws" in page


def test_a_picture_that_is_no_longer_drawn_goes(report, folder, root):
    old = root / "docs/figures/old.svg"
    old.parent.mkdir(parents=True)
    old.touch()
    report.write(folder, FAMILIES, root)
    assert not old.exists()


def test_the_command_says_what_is_missing(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--report", "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 1
    assert f"there are no figures in {tmp_path}: run `python -m benchmarks`" in finished.stderr


def test_a_run_that_is_written_is_read_again(tmp_path):
    from benchmarks import harness

    table = harness.Table("A title", "us", ["x"], {"tf_ti": [1.0], "torch": [None]}, "tf_ti")
    table.goals.append(harness.Goal("a goal", 1.0, 2.0))
    run = harness.Run.of_this_machine([table], "python -m benchmarks bags")
    harness.write(run, tmp_path / "bags.json")
    assert harness.Run.read(tmp_path / "bags.json") == run
    assert run.versions.keys() >= {"Python", "tf_ti"}


# --- what is in the repository -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README.md", "docs/figures/index.md"])
def test_committed_figures_say_what_measured_them(report, name):
    path = ROOT / name
    text = path.read_text()
    if name == "README.md":
        text = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert re.search(r"`python -m benchmarks [a-z_]+", text)
    assert re.search(r"\d+ cores?, [^;]+; \d{4}-\d\d-\d\d", text)


def test_committed_figures_are_those_of_the_page(report):
    folder = ROOT / report.FIGURES
    named = re.findall(r"^```\{figure\} (\S+)$", (folder / "index.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in folder.glob("*.svg"))
    assert all(path.stat().st_size < 100_000 for path in folder.glob("*.svg"))


def test_every_family_has_a_heading(report):
    from benchmarks import __main__ as program

    assert tuple(report.HEADINGS) == program.FAMILIES

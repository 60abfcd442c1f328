"""What README.md, AGENTS.md and docs/ say of results, commands, files, names and formats is what is there."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.evaluation.report.tables import CSV_COLUMNS, F1Table
from deepsearch_rl.evaluation.scoring.f1_row import ConstantScore, F1TableRow
from deepsearch_rl.records import StopReason
from deepsearch_rl.training.rl.rewards import REWARDS
from scripts import readme
from scripts.file_tree import tree
from scripts.imports import parse
from scripts.markers import with_part

BEGIN, END = "<!-- results -->", "<!-- /results -->"
DOCUMENTS = (
    "README.md",
    "AGENTS.md",
    "docs/architecture.md",
    "docs/contracts.md",
    "docs/experiments.md",
    "docs/operations.md",
    "docs/running.md",
    "docs/serving.md",
    "profiles/gpu/README.md",
    "profiles/single_gpu/README.md",
    "profiles/thinking/README.md",
)


@pytest.fixture
def table() -> F1Table:
    """A table of one row."""
    row = F1TableRow(
        model="base",
        checkpoint="models/tiny/base",
        dataset="multihoprag",
        corpus="world",
        prompt="tiny",
        top_k=3,
        chunk_size=28,
        temperature=0.7,
        samples=3,
        seed=0,
        n=400,
        em=0.2,
        f1=0.25,
        f1_low=0.2,
        f1_high=0.3,
        acc=0.2,
        precision=0.2,
        recall=0.2,
        mean_rounds=2.0,
        mean_tool_calls=1.0,
        failures={},
        pass_at={1: 0.2},
        generated=True,
        constant=ConstantScore(answer="Insufficient information.", f1=0.12, em=0.12),
        types={},
    )
    return F1Table(profile="tiny", generated=True, rows=(row,), comparisons=())


def with_table(text: str, table: F1Table) -> str:
    return with_part(text, readme.NAME, readme.part(table))


def committed(root: Path, path: Path) -> str:
    """Return a file as git has it; a run of the graph rewrites the report of the working copy."""
    shown = subprocess.run(["git", "show", f"HEAD:{path}"], cwd=root, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"git has no {path}: {shown.stderr.strip()}")
    return shown.stdout


def test_the_readme_shows_the_table_of_the_committed_report(root: Path) -> None:
    table = F1Table.model_validate_json(committed(root, readme.TABLE))
    texts = ((root / "README.md").read_text(encoding="utf-8"), committed(root, readme.README))
    assert any(with_table(text, table) == text for text in texts), "run `make readme`"


def test_only_what_stands_between_the_markers_is_replaced(table: F1Table) -> None:
    text = f"before\n\n{BEGIN}\nstale\n{END}\n\nafter\n"
    filled = with_table(text, table)
    assert filled.startswith(f"before\n\n{BEGIN}\n\n| F1 | questions | best constant | base |\n")
    assert "| multihoprag | 400 x 3 | .120 | .250 |" in filled
    assert filled.endswith(f"\n{END}\n\nafter\n")
    assert "stale" not in filled
    assert with_table(filled, table) == filled


@pytest.mark.parametrize("text", ["", BEGIN, f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN} {END}"])
def test_a_readme_without_one_place_for_the_table_is_refused(table: F1Table, text: str) -> None:
    with pytest.raises(ArtifactError, match="results"):
        with_table(text, table)


def test_the_command_rewrites_the_readme_of_its_folder(
    table: F1Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme.README.write_text(f"{BEGIN}\n{END}\n")
    with pytest.raises(SystemExit, match=r"error: .*f1_table\.json does not exist"):
        readme.main()
    readme.TABLE.parent.mkdir(parents=True)
    readme.TABLE.write_text("{}")
    with pytest.raises(SystemExit, match=r"f1_table\.json, field 'profile': "):
        readme.main()
    readme.TABLE.write_text(table.model_dump_json())
    readme.main()
    assert readme.README.read_text() == with_table(f"{BEGIN}\n{END}\n", table)


def test_make_has_every_target_that_a_document_names(root: Path) -> None:
    listed = subprocess.run(["make", "--no-print-directory", "help"], cwd=root, capture_output=True, text=True)
    targets = set(re.findall(r"^  make ([a-z-]+)", listed.stdout, re.MULTILINE))
    texts = [(root / document).read_text(encoding="utf-8") for document in DOCUMENTS]
    named = {name for text in texts for name in re.findall(r"(?:^    |`)make ([a-z][a-z-]*)", text, re.MULTILINE)}
    assert {"repro", "test"} <= named
    assert named - targets == set()


def test_the_readme_fits_a_few_screens(root: Path) -> None:
    assert len((root / "README.md").read_text(encoding="utf-8").splitlines()) <= 250


def test_the_file_tree_is_that_of_the_checkout(root: Path) -> None:
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert with_part(text, "files", tree()) == text, "run `make readme`"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_links_to_exists(root: Path, document: str) -> None:
    text = (root / document).read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link}
    assert {link for link in links if not (root / document).parent.joinpath(link).exists()} == set()


def test_every_axis_letter_of_the_source_is_explained(root: Path) -> None:
    rows = re.findall(r"^\| ([A-Z1](?:, [A-Z1])*) \| ", (root / "AGENTS.md").read_text(encoding="utf-8"), re.MULTILINE)
    explained = {letter for row in rows for letter in row.split(", ")}
    names = {
        node.id for path in (root / "src").rglob("*.py") for node in ast.walk(parse(path)) if isinstance(node, ast.Name)
    }
    suffixes = [found[1] for name in names if (found := re.fullmatch(r"[a-z_]+_([A-Z1]{1,4})", name))]
    assert suffixes
    assert set("".join(suffixes)) == explained


def contract(root: Path, number: int) -> str:
    """The text of a section of docs/contracts.md."""
    sections = (root / "docs/contracts.md").read_text(encoding="utf-8").split("\n## ")[1:]
    return next(section for section in sections if section.startswith(f"{number}. "))


def test_the_contracts_list_the_fields_of_a_row_the_stop_reasons_and_the_rewards(root: Path) -> None:
    fields = re.search(r"\n    (model, .*?) \{stop reason", contract(root, 7), re.DOTALL)
    assert fields
    assert tuple(re.split(r",\s+", fields[1])) == tuple(name for name in CSV_COLUMNS if name != "generated")
    reasons = contract(root, 4).partition("    stop_reason ")[2].partition("\n\n")[0]
    assert re.findall(r"^    (\w+) ", reasons, re.MULTILINE) == list(StopReason)
    assert set(re.findall(r"^    (\w+) .* 0(?: \.\. | \| )1$", contract(root, 3), re.MULTILINE)) == REWARDS.keys()


def test_every_document_that_the_source_refers_to_exists(root: Path) -> None:
    sources = [*(root / "src").rglob("*.py"), *(root / "stages").glob("*.py"), *root.glob("profiles/*/params.yaml")]
    named = {name for path in sources for name in re.findall(r"docs/\w+\.md", path.read_text(encoding="utf-8"))}
    assert "docs/contracts.md" in named
    assert {name for name in named if not (root / name).is_file()} == set()

"""Code of a user's own file, named in params: the examples of docs/own_code.md, and what is said where it is wrong."""

import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from dvc.utils.serialize import parse_yaml

from deepsearch_rl.core.errors import (
    ArtifactError,
    ConfigError,
    DeepsearchError,
    EndpointError,
    UnknownNameError,
)
from deepsearch_rl.core.files import read_jsonl, write_jsonl
from deepsearch_rl.core.own_code import load_own, own_path, require_deps
from deepsearch_rl.core.profile import Profile, load_profile
from deepsearch_rl.core.records import Document, Question
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.manifest import IndexConfig
from deepsearch_rl.search.searcher import open_index
from deepsearch_rl.server.config import RetrievalConfig
from deepsearch_rl.server.launch import serve_index
from deepsearch_rl.train.filters import apply_predicates, find_predicates
from deepsearch_rl.train.prompt_search import OptimizePromptConfig
from deepsearch_rl.train.rewards import (
    PolicyText,
    ThinkLength,
    find_reward,
    require_scores,
    reward_parts,
)
from stages import download
from tests.chunks import make_chunks
from tests.pipeline.smoke_copy import copy_of_working_tree, run
from tests.settings import INDEX, RETRIEVAL
from tests.train.test_filters import QUESTION, trajectory
from tools import ROOT

PAGE = (ROOT / "docs" / "own_code.md").read_text()
POLICY = PolicyText(len, ThinkLength(min_tokens=0, full_score_tokens=1, max_tokens=2))
CHUNKS = make_chunks(
    ["Comet lander\nIt landed.", "River city\nA port.", "Comet\nIce and dust.", "Moon\nGrey."]
)


def blocks() -> list[str]:
    """The indented blocks of the page, without their indent."""
    found = re.findall(r"(?:^    .*\n|^\n(?=\n*    ))+", PAGE, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE).strip() for block in found]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    folder = tmp_path / "own"
    folder.mkdir()
    for block in blocks():
        if match := re.match(r"# own/(\w+\.py)\n", block):
            (folder / match[1]).write_text(block)
    assert len(list(folder.iterdir())) == 5
    return folder


def params_of(section: str, own: Path) -> dict[str, Any]:
    """The params that the page shows with code of the user's own in a section, as DVC reads them."""
    [text] = [block for block in blocks() if block.startswith(f"{section}:") and "own/" in block]
    text = text.replace("!replace", "").replace("own/", f"{own}/")
    return parse_yaml(text, "docs/own_code.md")


def write(folder: Path, text: str) -> str:
    """Write a file of own code and return its path."""
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


def test_the_pages_reward_scores_rollouts(own: Path) -> None:
    weights = params_of("rl", own)["rl"]["rewards"]
    name = f"{own}/rewards.py:cites"
    require_scores(weights, QUESTION, POLICY)
    assert reward_parts(weights, trajectory(), QUESTION, POLICY) == {"f1": 2.0, name: 0.5}
    uncited = trajectory(passage="[1] Northgate\nNobody is named.")
    assert reward_parts(weights, uncited, QUESTION, POLICY) == {"f1": 2.0, name: 0.0}


def test_the_pages_filter_drops_trajectories_and_is_counted(own: Path) -> None:
    names = params_of("filter", own)["filter"]["predicates"]
    long = trajectory(queries=("a", "b", "c"))
    kept, dropped = apply_predicates([trajectory(), long], [QUESTION], find_predicates(names))
    assert kept == [trajectory()]
    assert dropped[f"{own}/filters.py:two_searches"] == 1


def test_the_pages_retriever_and_encoder_search_an_index(own: Path, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "chunks.jsonl", CHUNKS)
    values = INDEX.model_dump() | params_of("index", own)["index"]
    config = IndexConfig.model_validate(values)
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)

    retriever = params_of("retrieval", own)["retrieval"]["retriever"]
    setting = RetrievalConfig.model_validate(RETRIEVAL.model_dump() | {"retriever": retriever})
    for name in (setting.retriever, "dense"):
        searcher = open_index(tmp_path / "index", retriever=name)
        [hits] = searcher.find_hits(["the comet lander"], 2)
        assert [hit.row for hit in hits] == [0, 2]


@pytest.mark.slow
def test_a_server_process_answers_by_the_pages_retriever_and_says_why_it_cannot(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = tmp_path / "chunks.jsonl"
    write_jsonl(chunks, CHUNKS)
    build_index(chunks, tmp_path / "index", INDEX, seed=0)
    setting = RETRIEVAL.model_copy(update={"retriever": f"{own}/retrievers.py:TitleWords"})
    # A process that works elsewhere finds the same file
    monkeypatch.chdir(tmp_path)
    with serve_index(tmp_path / "index", chunks, setting) as url:
        answer = httpx.post(f"{url}/retrieve", json={"queries": ["comet"], "topk": 2}, timeout=20)
    texts = [document["contents"] for document in answer.json()["result"][0]]
    assert texts == [CHUNKS[0].contents, CHUNKS[2].contents]

    broken = write(tmp_path, "def mine(chunks, index):\n    return chunks[99]\n")
    setting = RETRIEVAL.model_copy(update={"retriever": f"{broken}:mine"})
    with (
        pytest.raises(EndpointError, match="fails at line 2 with IndexError"),
        serve_index(tmp_path / "index", chunks, setting),
    ):
        pytest.fail("it serves")


def test_an_edited_retriever_is_another_setting(own: Path) -> None:
    retriever = f"{own}/retrievers.py:TitleWords"
    setting = RETRIEVAL.model_copy(update={"retriever": retriever})
    before = setting.search_fingerprint()
    (own / "retrievers.py").write_text((own / "retrievers.py").read_text() + "\n# edited\n")
    assert setting.search_fingerprint() != before


def test_the_pages_readers_are_read_by_the_stage_download(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = params_of("download", own)
    folder = values["download"]["folder"]
    folder["root"] = str(tmp_path)
    folder["questions"]["support"][0]["splits"] = {"dev": 1, "val": None}
    (tmp_path / "manuals.csv").write_text('Pump,"Open the valve, then wait."\n')
    (tmp_path / "support.csv").write_text("1,Which valve?,the upper one\n2,How long?,a minute\n")
    download.main(Profile(Path("p.yaml"), {"profile": "mine", "seed": 0} | values))
    [document] = read_jsonl(Path("data/mine/corpora/manuals.jsonl"), Document)
    assert document.title == "Pump"
    splits = [Path(f"data/mine/questions/support/{split}.jsonl") for split in ("dev", "val")]
    questions = [question for split in splits for question in read_jsonl(split, Question)]
    assert {question.id for question in questions} == {"1", "2"}


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("", "gone", "unknown reward in .*mine.py, 'gone'"),
        ("def cites(a, b, c): ...", "cite", "Did you mean 'cites'"),
        ("cites = 1", "cites", "is a value"),
        ("def cites(a): ...", "cites", "cannot be called with .trajectory, question, policy."),
        ("def cites(a, b, c):\n    return 2", "cites", "returned 2 for the rollout q#0"),
        ("def cites(a, b, c):\n    return float('nan')", "cites", "a number from 0 to 1"),
        ("def cites(a, b, c):\n    return None", "cites", "returned None"),
        ("def cites(a, b, c):\n    return a.gone", "cites", "fails at line 2 with AttributeError"),
        ("import beside_me", "cites", "mine.py cannot be loaded.*line 1.*no file beside it"),
        ("x = (", "cites", "cannot be loaded.*line 1 with SyntaxError"),
    ],
)  # fmt: skip
def test_a_reward_that_cannot_score_is_refused_before_any_rollout(
    tmp_path: Path, text: str, name: str, problem: str
) -> None:
    reward = f"{write(tmp_path, text)}:{name}"
    with pytest.raises(ConfigError, match=problem) as error:
        require_scores([reward], QUESTION, POLICY)
    assert "\n" not in str(error.value)


def test_a_file_that_does_not_exist_and_a_name_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*gone\.py"):
        find_reward(f"{tmp_path}/gone.py:cites")
    for name in ("own.rewards:cites", "own/rewards.py:", "a:b:c"):
        with pytest.raises(ConfigError, match="names no code"):
            find_reward(name)


def test_a_relative_path_begins_at_the_project_wherever_a_process_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_path("stages/chunk.py:cites") == ROOT / "stages" / "chunk.py"
    with pytest.raises(UnknownNameError, match="unknown reward in"):
        load_own("reward", "stages/chunk.py:cites", ())


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("[]", "0 rankings for 1 queries"),
        ("[(0, 1.0)]", "a tuple, not a Ranking"),
        ("[Ranking(np.array([9]), np.ones(1))]", "whole numbers from 0 to 3"),
        ("[Ranking(np.array([-1]), np.ones(1))]", "whole numbers from 0 to 3"),
        ("[Ranking(np.array([1, 1]), np.ones(2))]", "a row twice"),
        ("[Ranking(np.array([0, 1]), np.array([1.0, 2.0]))]", "descending"),
        ("[Ranking(np.array([0, 1, 2]), np.ones(3))]", "more than top_k = 2"),
        ("[Ranking(np.array([0, 1]), np.ones(1))]", "with scores of shape"),
        ("1 / 0", "fails at line 5 with ZeroDivisionError"),
    ],
)
def test_a_retriever_that_returns_what_it_may_not_is_an_error_and_no_empty_result(
    tmp_path: Path, returned: str, problem: str
) -> None:
    write_jsonl(tmp_path / "chunks.jsonl", CHUNKS)
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", INDEX, seed=0)
    path = write(
        tmp_path,
        "import numpy as np\n"
        "from deepsearch_rl.search.ranking import Ranking\n"
        "class Mine:\n"
        "    def __init__(self, chunks, index): ...\n"
        f"    def search(self, queries, top_k, allowed_N=None): return {returned}\n",
    )
    searcher = open_index(tmp_path / "index", retriever=f"{path}:Mine")
    with pytest.raises(ConfigError, match=problem):
        searcher.find_hits(["comet"], 2)


@pytest.mark.parametrize(
    ("dimension", "returned", "problem"),
    [
        ("0", "np.ones((len(texts), 4))", "has the dimension 0"),
        ("4", "np.ones((len(texts), 3))", r"shape \(\d, 3\)"),
        ("4", "np.ones((1, 4))", r"shape \(1, 4\)"),
    ],
)
def test_an_encoder_with_vectors_of_another_shape_builds_no_index(
    tmp_path: Path, dimension: str, returned: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_with_own_encoder(tmp_path, dimension, returned)


def test_an_encoder_with_vectors_that_are_not_finite_builds_no_index(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the vector of passage 'c0' .* holds NaN or infinite"):
        build_with_own_encoder(tmp_path, "4", "np.ones((len(texts), 4)) * np.nan")


def build_with_own_encoder(tmp_path: Path, dimension: str, returned: str) -> None:
    """Build an index with an encoder whose dimension and vectors are these expressions."""
    path = write(
        tmp_path,
        "import numpy as np\n"
        "class Mine:\n"
        f"    dimension = {dimension}\n"
        f"    def encode(self, texts, kind): return {returned}\n",
    )
    write_jsonl(tmp_path / "chunks.jsonl", CHUNKS)
    encoder = {"name": "own", "code": f"{path}:Mine"}
    config = IndexConfig.model_validate(INDEX.model_dump() | {"encoder": encoder})
    build_index(tmp_path / "chunks.jsonl", tmp_path / "index", config, seed=0)


def test_a_reader_of_something_else_and_an_undecided_predicate_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(
        tmp_path, "def read(path):\n    yield {'id': 'q'}\ndef keep(a, b):\n    return 1\n"
    )
    values = {"profile": "mine", "seed": 0}
    source = {"format": f"{path}:read", "path": "x", "shuffle_seed": None, "splits": {"val": None}}
    folder = {"root": str(tmp_path), "corpora": {}, "questions": {"mine": [source]}}
    values["download"] = {"source": "folder", "folder": folder}
    with pytest.raises(ConfigError, match=r"yielded a dict as number 1 of .*must be a Question"):
        download.main(Profile(Path("p.yaml"), values))
    with pytest.raises(ConfigError, match="returned 1 for the trajectory q#0"):
        apply_predicates([trajectory()], [QUESTION], find_predicates([f"{path}:keep"]))


def test_unknown_names_of_ours_are_refused_as_ever() -> None:
    for retriever in ("bm52", "Dense"):
        with pytest.raises(UnknownNameError, match="unknown retriever"):
            RetrievalConfig.model_validate(RETRIEVAL.model_dump() | {"retriever": retriever})
    values = load_profile(ROOT / "params.yaml").values["optimize_prompt"]
    with pytest.raises(UnknownNameError, match="short_think"):
        OptimizePromptConfig.model_validate(values | {"rewards": {"short_think": 1.0}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rl.rewards", {"f1": 1, "own/mine.py:a": 1}),
        ("filter.predicates", ["answered", "own/mine.py:a"]),
        ("retrieval.retriever", "own/mine.py:a"),
        ("index.encoder", {"name": "own", "code": "own/mine.py:a"}),
    ],
)
def test_a_file_that_is_no_dep_is_refused(field: str, value: Any) -> None:
    profile = load_profile(ROOT / "params.yaml").with_overrides({field: value})
    with pytest.raises(ConfigError, match=r"own/mine\.py, which is no dep .*make params"):
        require_deps(profile)


@pytest.mark.slow
def test_dvc_runs_a_stage_of_the_graph_with_own_code_and_again_after_its_edit(
    tmp_path: Path,
) -> None:
    copy = copy_of_working_tree(tmp_path / "copy")
    reader = copy / "own" / "readers.py"
    reader.parent.mkdir()
    reader.write_text(
        next(block for block in blocks() if block.startswith("# own/readers.py")) + "\n"
    )
    (copy / "own" / "support.csv").write_text("1,Which valve?,the upper one\n2,When?,at noon\n")
    (copy / "own" / "manuals.csv").write_text("Pump,Open the upper valve at noon.\n")
    params = copy / "profiles" / "smoke" / "params.yaml"
    values = yaml.safe_load(params.read_text())
    source = {"shuffle_seed": None, "splits": {"val": None}}
    graph = copy / "profiles" / "smoke" / "dvc.yaml"
    download = "      - ${download.path}\n"
    graph.write_text(graph.read_text().replace(download, f"{download}      - own/readers.py\n"))
    values["download"] = {
        "source": "folder",
        "path": "own/support.csv",
        "folder": {
            "root": "own",
            "corpora": {
                "manuals": {"format": "own/readers.py:read_documents", "path": "manuals.csv"}
            },
            "questions": {
                "support": [
                    {"format": "own/readers.py:read_questions", "path": "support.csv", **source}
                ]
            },
        },
    }
    params.write_text(yaml.safe_dump(values, sort_keys=False))
    graph = params.with_name("dvc.yaml")
    dep = "      - stages/download.py\n"
    graph.write_text(graph.read_text().replace(dep, f"{dep}      - own/readers.py\n"))
    target = "profiles/smoke/dvc.yaml:download"
    run(copy, "dvc", "repro", target)
    questions = copy / "data" / "smoke" / "questions" / "support" / "val.jsonl"
    assert len(questions.read_text().splitlines()) == 2
    assert "up to date" in run(copy, "dvc", "status", target)

    edited = reader.read_text().replace("(answer,)", "(answer.upper(),)")
    reader.write_text(edited)
    run(copy, "dvc", "repro", target)
    assert "AT NOON" in questions.read_text()


def test_our_own_errors_keep_their_words(tmp_path: Path) -> None:
    text = "from deepsearch_rl.core.errors import ArtifactError\n"
    text += "def read(path):\n    raise ArtifactError('no such shelf')\n"
    with pytest.raises(DeepsearchError, match=r"^no such shelf$"):
        load_own("reader", f"{write(tmp_path, text)}:read", ("path",))(tmp_path)


def test_numbers_of_numpy_are_scores(tmp_path: Path) -> None:
    path = write(tmp_path, "import numpy as np\ndef half(a, b, c):\n    return np.float32(0.5)\n")
    score = find_reward(f"{path}:half")(trajectory(), QUESTION, POLICY)
    assert score == np.float32(0.5)
    assert isinstance(score, float)

"""Questions and answers in scripts without blanks between words."""

from pathlib import Path

import pytest

from deepsearch_rl.core.answers import f1
from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.searcher import open_index
from tests.chunks import make_chunks
from tests.settings import INDEX

LANGUAGES = [
    ("القاهرة\nالقاهرة هي عاصمة جمهورية مصر العربية.", "ما هي عاصمة مصر", "القاهرة"),  # noqa: RUF001
    ("台北\n臺北市是中華民國的首都。", "中華民國的首都", "臺北市"),
    ("東京\n東京は日本の首都である。", "日本の首都はどこ", "東京"),
    ("เชียงใหม่\nเชียงใหม่อยู่ทางเหนือของประเทศไทย", "เมืองทางเหนือของไทย", "เชียงใหม่"),
    ("मुंबई\nमुंबई महाराष्ट्र की राजधानी है।", "महाराष्ट्र की राजधानी", "मुंबई"),
    ("부산\n부산은 대한민국의 항구 도시이다.", "한국의 항구 도시", "부산"),
    ("ירושלים\nירושלים היא בירת ישראל.", "בירת ישראל", "ירושלים"),  # noqa: RUF001
    ("தமிழ்நாடு\nசென்னை தமிழ்நாட்டின் தலைநகரம்.", "தலைநகரம் சென்னை", "சென்னை"),
    ("ঢাকা\nঢাকা বাংলাদেশের রাজধানী।", "বাংলাদেশের রাজধানী", "ঢাকা"),
    ("Αθήνα\nΗ Αθήνα είναι η πρωτεύουσα της Ελλάδας.", "πρωτεύουσα της Ελλάδας", "Αθήνα"),  # noqa: RUF001
]


@pytest.fixture(scope="module")
def languages_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("languages")
    write_jsonl(folder / "chunks.jsonl", make_chunks([text for text, _, _ in LANGUAGES]))
    encoder = INDEX.encoder.model_copy(update={"dimension": 32})
    config = INDEX.model_copy(update={"encoder": encoder})
    build_index(folder / "chunks.jsonl", folder / "index", config, seed=0)
    return folder / "index"


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
@pytest.mark.parametrize("row", range(len(LANGUAGES)))
def test_a_question_in_another_script_finds_its_passage(
    languages_index: Path, retriever: str, row: int
) -> None:
    [hits] = open_index(languages_index, retriever=retriever).find_hits([LANGUAGES[row][1]], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize("answer", [answer for _, _, answer in LANGUAGES])
def test_f1_of_another_script_is_of_words_between_blanks_as_it_is_defined(answer: str) -> None:
    assert f1(answer, [answer]) == 1
    assert f1(f"{answer}.", [answer]) == 1  # ASCII punctuation is dropped
    assert f1(f"{answer} {answer}x", [answer]) == pytest.approx(2 / 3)
    assert f1(f"{answer}x", [answer]) == 0  # one word, another one

"""Searches in languages without blanks between words, and letters in several spellings."""

from pathlib import Path

import pytest

from deepsearch_rl.core.files import write_jsonl
from deepsearch_rl.search.analysis import analyse
from deepsearch_rl.search.build import build_index
from deepsearch_rl.search.question_parts import SourceNames, split_question
from deepsearch_rl.search.searcher import open_index
from tests.chunks import make_chunks
from tests.settings import INDEX

UNSPACED_PASSAGES = (
    "北京\n北京是中华人民共和国的首都。",  # bm25s#34, pyserini#565, llama_index#13866
    "富士山\n富士山は日本で最も高い山です。",
    "กรุงเทพมหานคร\nกรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย",
    "दिल्ली\nदिल्ली भारत की राजधानी है।",
    "서울\n서울은 대한민국의 수도이다.",
    "ຫຼວງພະບາງ\nຫຼວງພະບາງເປັນເມືອງໃນພາກເໜືອຂອງລາວ",
    "ភ្នំពេញ\nភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា",
    "ရန်ကုန်\nရန်ကုန်မြို့သည်မြန်မာနိုင်ငံ၏အကြီးဆုံးမြို့ဖြစ်သည်",
    "Philae\nThe lander touched down on a comet.",
)
UNSPACED_QUERIES = (
    ("中国的首都是哪里", 0),
    ("日本で一番高い山は何ですか", 1),
    ("เมืองหลวงของไทย", 2),
    ("भारत की राजधानी", 3),
    ("한국의 수도는 어디인가", 4),
    ("ເມືອງຢູ່ພາກເໜືອ", 5),
    ("រាជធានីកម្ពុជា", 6),
    ("မြန်မာနိုင်ငံအကြီးဆုံးမြို့", 7),
    ("landers on comets", 8),
)


@pytest.fixture(scope="module")
def unspaced_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unspaced")
    write_jsonl(folder / "chunks.jsonl", make_chunks(UNSPACED_PASSAGES))
    encoder = INDEX.encoder.model_copy(update={"dimension": 16})
    config = INDEX.model_copy(update={"encoder": encoder})
    build_index(folder / "chunks.jsonl", folder / "index", config, seed=0)
    return folder / "index"


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid"])
@pytest.mark.parametrize(("query", "row"), UNSPACED_QUERIES)
def test_a_question_in_a_language_without_blanks_finds_its_passage(
    unspaced_index: Path, retriever: str, query: str, row: int
) -> None:
    [hits] = open_index(unspaced_index, retriever=retriever).find_hits([query], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize(("query", "row"), [("京", 0), ("高", 1), ("ย", 2), ("울", 4)])
def test_a_query_of_one_letter_finds_the_words_that_hold_it(
    unspaced_index: Path, query: str, row: int
) -> None:
    [hits] = open_index(unspaced_index, retriever="bm25").find_hits([query], 1)
    assert [hit.row for hit in hits] == [row]


@pytest.mark.parametrize("query", ["巴黎", "法", "ปารีส", "पेरिस", "파리"])
def test_a_word_that_no_passage_holds_finds_none(unspaced_index: Path, query: str) -> None:
    assert open_index(unspaced_index, retriever="bm25").find_hits([query], 3) == [[]]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("तमिलनाडु", ["तमिलनाडु"]),  # bm25s#34: a vowel sign stays with its consonant
        ("தமிழ் বাংলা", ["தமிழ்", "বাংলা"]),
        ("cafe\u0301", ["café"]),
        ("か\u3099く", ["がく"]),
        ("\uff21\uff22 \uff11", ["ab", "1"]),
        ("ｶﾞｽ", ["ガス"]),
        ("葛\U000e0100城", ["葛城"]),
        ("2024年 iPhone手机", ["2024", "年", "iphon", "手机"]),
        ("क्\u200dष", ["क्ष"]),
        ("1\ufe0f\u20e3 ❤\ufe0f", ["1"]),
    ],
)
def test_a_letter_keeps_its_marks_whatever_its_spelling(text: str, terms: object) -> None:
    assert analyse(text) == terms


def test_a_question_in_chinese_is_split_at_its_punctuation_and_names_its_source() -> None:
    parts = split_question(
        "据人民日报报道\uff0c北京是首都\uff0c那么上海呢\uff1f", SourceNames.of(["人民日报"])
    )
    assert parts.sources == (0,)
    assert [part for part in parts.parts if "北京" in part] == ["北京是首都"]

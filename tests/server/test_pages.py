"""A pages file that stays on disk."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.server.pages import NO_PAGE, PageFile


def test_a_page_is_found_by_its_url_wherever_it_stands_in_the_file(tmp_path: Path) -> None:
    pages = [
        {"url": "http://w/index.php/Zürich", "contents": "Zürich\nA city: \U0001f600", "n": 1},
        {"url": "http://w/b", "contents": "first"},
        {"url": "http://w/b", "contents": "last", "title": "B"},
    ]
    lines = [json.dumps(pages[0]), "", json.dumps(pages[1], ensure_ascii=False), "  "]
    text = "\n".join([*lines, json.dumps(pages[2])])
    path = tmp_path / "pages.jsonl"
    path.write_text(text, encoding="utf-8")

    known = PageFile(path)
    assert json.loads(known.find("http://w/index.php?title=Zürich")) == pages[0]
    assert json.loads(known.find("http://w/b")) == pages[2]
    assert known.find("http://w/c") == NO_PAGE

    with ThreadPoolExecutor(8) as threads:
        urls = ["http://w/b", "http://w/index.php/Zürich"] * 50
        found = list(threads.map(known.find, urls))
    assert {json.loads(page)["contents"] for page in found} == {"last", pages[0]["contents"]}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"pages\.jsonl"):
        PageFile(tmp_path / "pages.jsonl")


def test_a_byte_order_mark_is_skipped_and_another_layout_named(tmp_path: Path) -> None:
    pages = [{"url": "http://w/a", "contents": "A"}, {"url": "http://w/b", "contents": "B"}]
    text = "".join(json.dumps(page) + "\n" for page in pages)
    (tmp_path / "marked.jsonl").write_text(text, encoding="utf-8-sig")
    known = PageFile(tmp_path / "marked.jsonl")
    assert [json.loads(known.find(page["url"])) for page in pages] == pages

    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ArtifactError, match=r"packed\.jsonl is gzipped"):
        PageFile(tmp_path / "packed.jsonl")

"""A folder of files of every kind becomes a corpus; what cannot be read is named and counted."""

import logging
import os
from pathlib import Path

import docx
import pypdf
import pytest

from deepsearch_rl.core.errors import ArtifactError, ConfigError
from deepsearch_rl.core.files import read_json, read_jsonl
from deepsearch_rl.core.records import Document
from deepsearch_rl.data.documents import DocumentFolder
from deepsearch_rl.data.download import DownloadConfig, download
from deepsearch_rl.data.file_texts import READERS, UnreadableError, read_text

PAGE = """<!doctype html><html><head><title>The harbour of Ulverton</title><script>var x = 1;</script>
</head><body><header><nav><ul><li><a href="/">Home</a></li><li><a href="/news">News</a></li></ul></nav></header>
<main><article><h1>The harbour of Ulverton</h1>
<p>Ulverton has a harbour since 1790, and it was built by Ada Stone with the money of three merchants.</p>
<p>Its north quay was rebuilt in 1821 after a storm, because the first one had been made of wood.</p>
<table><tr><td>Quay</td><td>Built</td></tr><tr><td>north</td><td>1821</td></tr></table></article></main>
<footer>Copyright. <a href="/privacy">Privacy policy</a> Accept all cookies</footer></body></html>"""


def make_pdf(path: Path, lines: list[str], title: str = "") -> None:
    """Write a PDF of one page with these lines of text."""
    shown = "".join(f"({line}) Tj T*\n" for line in lines)
    stream = f"BT /F1 12 Tf 14 TL 50 700 Td\n{shown}ET".encode("cp1252")
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>",
        f"<</Title({title})>>".encode(),
    ]
    data = b"%PDF-1.4\n"
    offsets: list[int] = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj%s\nendobj\n" % (number, content)

    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = len(data)
    data += b"xref\n0 7\n0000000000 65535 f \n" + table
    data += b"trailer<</Size 7/Root 1 0 R/Info 6 0 R>>\nstartxref\n%d\n%%%%EOF\n" % end
    path.write_bytes(data)


def make_word(path: Path) -> None:
    document = docx.Document()
    document.add_heading("Minutes", 0)
    document.add_paragraph("Ben Ide was elected.")
    table = document.add_table(rows=2, cols=3)
    for cell, text in zip(table.rows[0].cells, ("Year", "Votes", "Votes"), strict=True):
        cell.text = text
    merged = table.rows[1].cells[0].merge(table.rows[1].cells[1])
    merged.text = "1821"
    table.rows[1].cells[2].text = "7"
    document.add_paragraph("The meeting ended.")
    document.save(str(path))


def texts_of(folder: Path) -> dict[str, str]:
    return {document.id: document.contents for document in DocumentFolder(folder)}


@pytest.mark.slow
def test_every_kind_of_file_is_a_document_with_its_path_as_source(tmp_path: Path) -> None:
    (tmp_path / "notes" / ".git").mkdir(parents=True)
    (tmp_path / "notes" / ".git" / "config").write_text("hidden")
    (tmp_path / "a.txt").write_bytes("\ufeffFirst line\r\nSecond, with é.\r\n".encode())
    (tmp_path / "notes" / "b.MD").write_text(
        "# Ada Stone #\n\nShe founded *Acme*.\n\n## Later\nx\n"
    )
    (tmp_path / "c.html").write_text(PAGE)
    make_pdf(
        tmp_path / "d.pdf", ["Acme Works was founded by an exam\u00ad", "ple of a person."], "Acme"
    )
    make_word(tmp_path / "e.docx")

    documents = {document.id: document for document in DocumentFolder(tmp_path)}
    assert list(documents) == ["a.txt", "c.html", "d.pdf", "e.docx", "notes/b.MD"]
    assert all(each.metadata == {"source": name} for name, each in documents.items())
    contents = {name: each.contents for name, each in documents.items()}
    assert contents["a.txt"] == "\nFirst line\nSecond, with é."
    assert contents["notes/b.MD"] == "Ada Stone\nShe founded *Acme*.\n\n## Later\nx"
    assert contents["d.pdf"] == "Acme\nAcme Works was founded by an example of a person."
    assert contents["e.docx"] == (
        "Minutes\nBen Ide was elected.\nYear | Votes | Votes\n1821 | 7\nThe meeting ended."
    )
    assert documents["c.html"].title == "The harbour of Ulverton"
    assert "built by Ada Stone with the money of three merchants." in contents["c.html"]
    assert "north" in contents["c.html"]
    assert not {"cookies", "Home", "var x"} & set(contents["c.html"].split())


def test_markdown_without_a_first_heading_keeps_its_whole_text(tmp_path: Path) -> None:
    code = "```sh\n# install it\nmake\n```\n"
    (tmp_path / "code.md").write_text(f"{code}\n# Ada Stone\nShe founded Acme.\n")
    (tmp_path / "late.md").write_text("An introduction.\n\n# Ada Stone\nShe founded Acme.\n")
    (tmp_path / "line.md").write_text("Ada Stone\n=========\nShe founded Acme.\n")
    (tmp_path / "none.md").write_text("She founded Acme.\n")
    assert texts_of(tmp_path) == {
        "code.md": f"Ada Stone\n{code}\n# Ada Stone\nShe founded Acme.",
        "late.md": "Ada Stone\nAn introduction.\n\n# Ada Stone\nShe founded Acme.",
        "line.md": "Ada Stone\nShe founded Acme.",
        "none.md": "\nShe founded Acme.",
    }


def test_files_that_cannot_be_read_are_named_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "good.txt").write_text("Readable.")
    (folder / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "README").write_text("no suffix")
    (folder / "empty.md").write_text(" \n")
    (folder / "cut.pdf").write_bytes(b"%PDF-1.4\n1 0 obj")
    (folder / "cut.docx").write_bytes(b"PK\x03\x04")
    make_pdf(folder / "scan.pdf", [])
    make_pdf(folder / "open.pdf", ["Secret."])
    writer = pypdf.PdfWriter(clone_from=folder / "open.pdf")
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(folder / "locked.pdf")
    (folder / "open.pdf").unlink()

    config = DownloadConfig(source="documents", path=folder)
    with caplog.at_level(logging.WARNING):
        counts = download(config, 0, tmp_path / "corpora", tmp_path / "questions")
    assert counts == {"documents": 1}
    assert (tmp_path / "questions").is_dir()
    [document] = read_jsonl(tmp_path / "corpora" / "documents.jsonl", Document)
    assert document.id == "good.txt"

    unreadable = read_json(tmp_path / "corpora" / "documents.unreadable.json")
    beginnings = {name: reason.split()[:4] for name, reason in unreadable.items()}
    assert beginnings == {
        "README": ["no", "suffix", "is", "none"],
        "cut.docx": ["it", "is", "a", "damaged"],
        "cut.pdf": ["it", "is", "a", "damaged"],
        "empty.md": ["there", "is", "no", "text"],
        "latin.txt": ["byte", "2", "is", "not"],
        "locked.pdf": ["it", "is", "encrypted;", "save"],
        "photo.png": [".png", "is", "none", "of"],
        "scan.pdf": ["there", "is", "no", "text"],
    }
    assert "8 files cannot be read, or not whole (README: no suffix" in caplog.text


def test_what_a_library_says_of_a_file_has_the_files_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_pdf(tmp_path / "whole.pdf", ["A harbour."])
    data = (tmp_path / "whole.pdf").read_bytes()
    (tmp_path / "mended.pdf").write_bytes(b"rubbish\n" + data)
    (tmp_path / "damaged.pdf").write_bytes(b"hello")
    (tmp_path / "damaged.html").write_bytes(b"")
    documents = DocumentFolder(tmp_path)
    assert [document.id for document in documents] == ["mended.pdf", "whole.pdf"]
    assert documents.unreadable.keys() == {"damaged.pdf", "damaged.html"}

    messages = [record.getMessage() for record in caplog.records]
    assert any(message.startswith(f"{tmp_path / 'mended.pdf'}: ") for message in messages)
    for message in messages:
        assert "mended.pdf" in message or "damaged.pdf" in message


def test_a_name_that_is_not_utf8_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("Readable.")
    for name in (b"caf\xe9.txt", b"\xff/plan.txt"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("Not read.")

    folder = DocumentFolder(tmp_path)
    assert [document.id for document in folder] == ["good.txt"]
    assert folder.unreadable == dict.fromkeys(
        ["caf\\xe9.txt", "\\xff/plan.txt"], "its name is not UTF-8; rename it"
    )


def test_links_to_folders_are_followed_and_those_that_lead_nowhere_or_back_are_named(
    tmp_path: Path,
) -> None:
    documents = tmp_path / "documents"
    (documents / "letters").mkdir(parents=True)
    (documents / "letters" / "home").symlink_to("..")
    (documents / "letters" / "lost.txt").symlink_to("gone.txt")
    elsewhere = tmp_path / "elsewhere" / "sub"
    elsewhere.mkdir(parents=True)
    (elsewhere / "note.txt").write_text("A note.", encoding="utf-8")
    (documents / "archive").symlink_to(elsewhere.parent)

    folder = DocumentFolder(documents)
    assert [document.id for document in folder] == ["archive/sub/note.txt"]
    assert folder.unreadable == {
        "letters/home": "it links to a folder that contains it",
        "letters/lost.txt": "its link is broken",
    }


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_that_the_system_cannot_read_is_named_with_its_reason(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "good.txt").write_text("Readable.")
    # The kernel refuses to read the first byte of a process's memory
    (tmp_path / f"bad{suffix}").symlink_to("/proc/self/mem")
    folder = DocumentFolder(tmp_path)
    assert [document.id for document in folder] == ["good.txt"]
    assert folder.unreadable == {f"bad{suffix}": "it cannot be read: Input/output error"}


def test_a_folder_without_a_readable_file_is_refused(tmp_path: Path) -> None:
    def problem(path: Path | None) -> str:
        config = DownloadConfig(source="documents", path=path)
        with pytest.raises((ArtifactError, ConfigError)) as caught:
            download(config, 0, tmp_path / "out", tmp_path / "out")
        return str(caught.value)

    (tmp_path / "empty").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").touch()
    assert "download.path must name a folder" in problem(None)
    assert "is not a folder" in problem(tmp_path / "nowhere")
    assert "is empty" in problem(tmp_path / "empty")
    assert "1 file cannot be read, or not whole (a.png: .png is none of" in problem(
        tmp_path / "images"
    )


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff\xfe\xd8", b"<" * 3000, b"PK\x05\x06" + bytes(18)]
)
def test_bytes_of_another_kind_are_a_text_or_unreadable_and_never_a_crash(
    suffix: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    try:
        title, text, _ = read_text(path)
    except UnreadableError:
        return
    assert text.strip()
    assert "\x00" not in title + text

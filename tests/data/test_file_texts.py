"""What the final view of a Word file, the pages of a PDF and the head of a Markdown file become."""

from pathlib import Path

import docx
import pypdf
import pytest
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from pypdf import annotations
from pypdf.generic import (
    ArrayObject,
    BooleanObject,
    DictionaryObject,
    NameObject,
    NullObject,
    TextStringObject,
)

from deepsearch_rl.data.documents import DocumentFolder
from deepsearch_rl.data.file_texts import TitledText, UnreadableError, read_text
from tests.data.test_documents import make_pdf

BY = 'w:id="2" w:author="x"'
BOX = """<w:r><mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"
xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" xmlns:v="urn:schemas-microsoft-com:vml">
<mc:Choice Requires="wps"><w:drawing><wps:txbx>{0}</wps:txbx></w:drawing></mc:Choice>
<mc:Fallback><w:pict><v:textbox>{0}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"""
EMOJI = """<w:r><mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">
<mc:Choice Requires="w16se"><symEx/></mc:Choice>
<mc:Fallback><w:t>\u263a</w:t></mc:Fallback></mc:AlternateContent></w:r>"""
TABS = """<w:pPr><w:tabs><w:tab w:val='left'/></w:tabs></w:pPr>
<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:noBreakHyphen/></w:r>"""


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(content: str) -> str:
    return f"<w:p>{content}</w:p>"


def cell(text: str) -> str:
    return paragraph(run(text))


BOXED = f"<w:txbxContent>{cell('boxed')}</w:txbxContent>"
SYMBOLS = """<w:r><w:sym w:font="MS Gothic" w:char="2612"/><w:sym w:font="Symbol" w:char="F06D"/>
<w:sym w:font="Wingdings" w:char="F0FE"/></w:r>"""
DROP_DOWN = """<w:r><w:fldChar w:fldCharType="begin"><w:ffData><w:ddList><w:listEntry w:val="Lee"/></w:ddList>
</w:ffData></w:fldChar></w:r>"""
DELETED_ROW = f"<w:tr><w:trPr><w:del {BY}/></w:trPr><w:tc>{cell('gone')}</w:tc></w:tr>"


def table(*rows: list[str]) -> str:
    lines = ("".join(f"<w:tc>{cell}</w:tc>" for cell in cells) for cells in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{line}</w:tr>' for line in lines)}</w:tbl>"


def read_word(path: Path, body: str, title: str = "") -> TitledText:
    document = docx.Document()
    document.core_properties.title = title
    for block in reversed(parse_xml(f"<w:body {nsdecls('w', 'm')}>{body}</w:body>")):
        document.element.body.insert(0, block)
    document.save(str(path / "file.docx"))
    return read_text(path / "file.docx")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            paragraph(
                run("They chose ")
                + '<w:ins w:id="2" w:author="x"><w:r><w:t>twelve</w:t></w:r></w:ins>'
                + f"<w:del {BY}><w:r><w:delText>eleven</w:delText></w:r></w:del>"
            ),
            "They chose twelve",
        ),
        (
            paragraph(f"<w:moveFrom {BY}>{run('moved')}</w:moveFrom>{run('First')}")
            + paragraph(f"<w:moveTo {BY}>{run('moved')}</w:moveTo>"),
            "First\nmoved",
        ),
        (
            paragraph(f'{run("on ")}<w:fldSimple w:instr=" DATE ">{run("3 May")}</w:fldSimple>'),
            "on 3 May",
        ),
        (
            paragraph(f'{run("in ")}<w:smartTag w:element="City">{run("Ulverton")}</w:smartTag>'),
            "in Ulverton",
        ),
        (paragraph(run("Anchor") + BOX.format(BOXED)), "Anchor\nboxed"),
        (table([cell("outer") + table([cell("in"), cell("ner")]), cell("right")]), "outer\nin | ner | right"),
        (f"<w:sdt><w:sdtContent>{cell('controlled')}</w:sdtContent></w:sdt>", "controlled"),
        (paragraph(f'<w:hyperlink w:anchor="a"><w:ins {BY}>{run("new")}</w:ins></w:hyperlink>'), "new"),
        (paragraph(f"<m:oMath><m:r><m:t>E=mc</m:t></m:r></m:oMath>{EMOJI}"), "E=mc\u263a"),
        (paragraph(TABS), "a\tb-"),
        (table([cell("kept")]).replace("</w:tbl>", f"{DELETED_ROW}</w:tbl>"), "kept"),
    ],
    ids=[
        *("insertion", "move", "field", "smart tag", "text box", "nested table", "content control"),
        *("link", "formula and emoji", "tabs", "deleted row"),
    ],
)  # fmt: skip
def test_a_word_file_is_read_as_its_final_view_shows_it(
    tmp_path: Path, body: str, text: str
) -> None:
    assert read_word(tmp_path, body) == TitledText("", text)


def test_a_cell_over_two_rows_is_in_both_and_one_over_two_columns_once(tmp_path: Path) -> None:
    document = docx.Document()
    grid = document.add_table(rows=2, cols=3)
    for cell, text in zip(grid.rows[0].cells, ("Year", "Votes", ""), strict=True):
        cell.text = text
    grid.rows[1].cells[1].text, grid.rows[1].cells[2].text = "7", "9"
    grid.rows[0].cells[1].merge(grid.rows[0].cells[2])
    grid.rows[0].cells[0].merge(grid.rows[1].cells[0])
    document.save(str(tmp_path / "merged.docx"))
    first, second = read_text(tmp_path / "merged.docx").text.split("Year")[1:]
    assert (first.split(), second.split()) == (["|", "Votes"], ["|", "7", "|", "9"])


def test_a_row_that_begins_beside_the_first_column_repeats_the_cell_above_it(
    tmp_path: Path,
) -> None:
    body = table([cell("a"), cell("b"), cell("c")], [paragraph(""), cell("d")])
    body = body.replace(
        f"<w:tc>{cell('b')}", f'<w:tc><w:tcPr><w:vMerge w:val="restart"/></w:tcPr>{cell("b")}'
    )
    body = body.replace(
        f"<w:tr><w:tc>{paragraph('')}",
        f'<w:tr><w:trPr><w:gridBefore w:val="1"/></w:trPr><w:tc><w:tcPr><w:vMerge/></w:tcPr>{paragraph("")}',
    )  # fmt: skip
    assert read_word(tmp_path, body).text == "a | b | c\nb | d"


def test_symbols_of_symbol_fonts_and_values_of_old_form_fields_are_named(tmp_path: Path) -> None:
    read = read_word(tmp_path, paragraph(run("yes ") + SYMBOLS + DROP_DOWN))
    assert read.text == "yes \u2612"
    assert read.unread == "without a check box or drop-down list, a symbol (2 times)"


def test_the_title_follows_a_paragraph_without_text(tmp_path: Path) -> None:
    heading = f'<w:p><w:pPr><w:pStyle w:val="Title"/></w:pPr>{run("Ada Stone")}</w:p>'
    body = paragraph("") + heading + cell("Born 1821.")
    assert read_word(tmp_path, body) == TitledText("Ada Stone", "Born 1821.")


def test_an_encrypted_word_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(bytes.fromhex("d0cf11e0a1b11ae1") + bytes(600))
    with pytest.raises(UnreadableError, match=r"or encrypted, .* save it as a plain"):
        read_text(tmp_path / "a.docx")


NOTES = """<w:footnotes {}><w:footnote w:id="0" w:type="separator"><w:p><w:r><w:separator/></w:r></w:p></w:footnote>
<w:footnote w:id="1"><w:p><w:r><w:t>Minutes of 1821.</w:t></w:r></w:p></w:footnote></w:footnotes>"""
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def test_footnotes_follow_the_text_and_parts_that_are_not_read_are_named(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("Twelve voted.")
    package = document.part.package
    word = "application/vnd.openxmlformats-officedocument."
    for name, kind, blob in (
        ("footnotes", f"{word}wordprocessingml.footnotes+xml", NOTES.format(nsdecls("w")).encode()),
        ("chart", f"{word}drawingml.chart+xml", b"<chart/>"),
        ("oleObject", f"{word}oleObject", b"x"),
    ):
        uri = docx.opc.packuri.PackURI(f"/word/{name}.xml")
        document.part.relate_to(docx.opc.part.Part(uri, kind, blob, package), f"{OFFICE}/{name}")
    (tmp_path / "files").mkdir()
    document.save(str(tmp_path / "files" / "a.docx"))

    folder = DocumentFolder(tmp_path / "files")
    assert [document.text for document in folder] == ["Twelve voted.\nMinutes of 1821."]
    assert folder.unreadable == {"a.docx": "only in part: without a chart, an embedded object"}


@pytest.mark.parametrize(
    "stored",
    [
        *("untitled", "Untitled-1", "Microsoft Word - Document1", "Document1", "report_v3.docx"),
        *("sans titre", "(Microsoft Word - 12)", "index.html", "scan0001.tif"),
        *("PowerPoint Presentation", "New Microsoft Word Document", "Scan_20200101", "Dokument1"),
    ],
)
def test_a_title_that_a_program_filled_in_is_the_name_of_the_file(
    tmp_path: Path, stored: str
) -> None:
    make_pdf(tmp_path / "minutes.pdf", ["Acme."], stored)
    assert read_text(tmp_path / "minutes.pdf").title == "minutes"
    assert read_word(tmp_path, cell("Acme."), stored).title == "file"


@pytest.mark.parametrize(
    "stored", ["", "1984", "Untitled Goose Game", "The Documents of 1821", "Amazon.com"]
)
def test_a_title_that_an_author_wrote_stays(tmp_path: Path, stored: str) -> None:
    make_pdf(tmp_path / "minutes.pdf", ["Acme."], stored)
    assert read_text(tmp_path / "minutes.pdf").title == stored


def join_pages(path: Path, pages: list[Path]) -> None:
    writer = pypdf.PdfWriter()
    for page in pages:
        writer.append(page)
    writer.write(path)


def test_pages_without_text_in_a_pdf_with_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    for name, lines in (("1", ["Acme."]), ("2", [])):
        make_pdf(tmp_path / "pages" / f"{name}.pdf", lines)
    one, two = sorted((tmp_path / "pages").iterdir())
    join_pages(tmp_path / "scan.pdf", [one, two, one, two])
    folder = DocumentFolder(tmp_path)
    assert {document.id: document.text for document in folder}["scan.pdf"].split() == ["Acme."] * 2
    assert folder.unreadable["scan.pdf"] == (
        "only in part: 2 of 4 pages have no text (2, 4); scans need OCR first"
    )


def test_form_values_and_typed_annotations_follow_the_text_of_their_page(tmp_path: Path) -> None:
    make_pdf(tmp_path / "form.pdf", ["Application"])
    writer = pypdf.PdfWriter(clone_from=tmp_path / "form.pdf")
    page = writer.pages[0]
    page[NameObject("/Annots")] = ArrayObject()

    def add(fields: dict[str, object]) -> None:
        widget = DictionaryObject({NameObject("/Subtype"): NameObject("/Widget")})
        widget.update({NameObject(key): value for key, value in fields.items()})
        page["/Annots"].append(writer._add_object(widget))

    text, name = TextStringObject, NameObject
    group = DictionaryObject({name("/T"): text("colour"), name("/V"): name("/red")})
    add({"/T": text("name"), "/V": text("Ada Stone")})
    add({"/T": text("f7"), "/TU": text("Born"), "/V": text("1821")})
    add({"/T": text("empty")})
    add({"/T": text("member"), "/V": name("/Yes"), "/AS": name("/Yes")})
    add({"/T": text("guest"), "/V": name("/Off"), "/AS": name("/Off")})
    add({"/Parent": group, "/AS": name("/red")})
    add({"/Parent": group, "/AS": name("/Off")})
    add({"/T": text("towns"), "/V": ArrayObject([text("Ulverton"), text("Lee")])})
    page["/Annots"].append(writer._add_object(DictionaryObject()))
    writer.add_annotation(0, annotations.FreeText(text="Approved by Ben Ide.", rect=(0, 0, 9, 9)))
    writer.add_annotation(0, annotations.FreeText(text="at", rect=(0, 0, 9, 9)))
    marked = ArrayObject()
    for contents in ("Application", "see 1821"):
        mark = annotations.Highlight(rect=(0, 0, 9, 9), quad_points=marked)
        mark[NameObject("/Contents")] = text(contents)
        writer.add_annotation(0, mark)
    page["/Annots"].append(
        DictionaryObject({name("/Subtype"): name("/Text"), name("/Contents"): NullObject()})
    )
    writer.add_annotation(0, annotations.Link(rect=(0, 0, 9, 9), url="http://x.example"))
    writer.write(tmp_path / "form.pdf")
    lines = read_text(tmp_path / "form.pdf").text.split("\n")
    assert list(filter(None, lines)) == [
        *("Application", "name: Ada Stone", "Born: 1821", "member: Yes", "colour: red"),
        *("towns: Ulverton, Lee", "Approved by Ben Ide.", "at", "see 1821"),
    ]


def test_a_form_that_only_a_viewer_can_draw_is_named(tmp_path: Path) -> None:
    make_pdf(tmp_path / "form.pdf", ["Please wait..."])
    writer = pypdf.PdfWriter(clone_from=tmp_path / "form.pdf")
    writer.root_object[NameObject("/NeedsRendering")] = BooleanObject(True)
    writer.write(tmp_path / "form.pdf")
    assert "form (XFA) is not in it; print it" in read_text(tmp_path / "form.pdf").unread


def test_files_attached_to_a_pdf_are_named(tmp_path: Path) -> None:
    make_pdf(tmp_path / "portfolio.pdf", ["Open this portfolio in a viewer."])
    writer = pypdf.PdfWriter(clone_from=tmp_path / "portfolio.pdf")
    writer.add_attachment("minutes.txt", b"Twelve voted.")
    writer.write(tmp_path / "portfolio.pdf")
    assert "attached files are not in it" in read_text(tmp_path / "portfolio.pdf").unread


def test_a_plain_hyphen_at_a_lines_end_is_joined_where_the_corpus_has_the_word(
    tmp_path: Path,
) -> None:
    make_pdf(tmp_path / "a.pdf", ["An Exam-", "ple of a well-", "known work of 1820-", "1821."])
    (tmp_path / "b.txt").write_text("Every example is known-\nwell, welt-\nweit.")
    texts = {document.id: document.text for document in DocumentFolder(tmp_path)}
    assert texts["a.pdf"] == "An Example of a well-\nknown work of 1820-\n1821."
    assert texts["b.txt"] == "Every example is known-\nwell, welt-\nweit."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("---\ntitle: Ada Stone\ntags: [x]\n---\n# Early life\nx", "Ada Stone"),
        ("---\r\nTitle: 'Ada: a life'\r\n---\r\nx", "Ada: a life"),
        ('+++\ntitle = "Ada Stone"\n+++\nx', "Ada Stone"),
        ("---\ntitle: 'Ada''s life' # checked\n---\nx", "Ada's life"),
        ('---\ntitle: "The \\"great\\" fire"\n---\nx', 'The "great" fire'),
        ("---\ntitle: C# for Ada # checked\n---\nx", "C# for Ada"),
        ("---\ntitle: null\n---\n# Ada Stone\nx", "Ada Stone"),
        ("```make install```\n\n# Ada Stone\nx", "Ada Stone"),
        ('---\ntitle: ""\nauthor: B\n---\n# Ada Stone\nx', "Ada Stone"),
        ("---\ntitle: Ada: a life\n---\nx", "Ada: a life"),
        ("---\n# a comment\nauthor: B\n---\n# Ada Stone\nx", "Ada Stone"),
        ("---\n# a comment\nauthor: B: C\n...\nx\n\nAda Stone\n===\n", "Ada Stone"),
        ("---\nauthor: B\n---\n```\n# make\n```\nx", ""),
        ("```\nmake\n====\n```\n~~~~ sh\n# install\n~~~~\n# Ada Stone\nx", "Ada Stone"),
        ("---\n\n# Ada Stone\n\n---\nx", "Ada Stone"),
        ("---\n# Ada Stone\nx\n---\nx", "Ada Stone"),
    ],
)
def test_the_title_of_markdown_is_that_of_its_front_matter_or_its_first_heading(
    tmp_path: Path, text: str, title: str
) -> None:
    (tmp_path / "a.md").write_text(text)
    read = read_text(tmp_path / "a.md")
    assert read.title == title
    assert read.text.endswith(text.rpartition("\n")[2])


@pytest.mark.parametrize("suffix", ["txt", "md"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize(
    "text", ["Plain text.", "\u041c\u043e\u0441\u0442 \u0441\u0442\u043e\u0438\u0442."]
)
def test_utf16_without_a_mark_is_refused(
    tmp_path: Path, suffix: str, encoding: str, text: str
) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(text.encode(encoding))
    with pytest.raises(UnreadableError, match="save the file as UTF-8"):
        read_text(tmp_path / f"a.{suffix}")

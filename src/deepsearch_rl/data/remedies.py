"""What makes a file of documents or questions readable: said of the file, or with the error about one of its rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import ArtifactError, RecordError

_AS_LINES = "orient='records', lines=True"
# How files that are not read begin, what they are, and what to do
_FILES = {
    b"\x28\xb5\x2f\xfd": ("is compressed by zstd", "unpack it: `zstd -d FILE`"),
    b"7z\xbc\xaf\x27\x1c": ("is a 7z archive", "unpack it: `7z x FILE`"),
    b"\xff\xfe\0\0": ("is UTF-32 text", "convert it: `iconv -f UTF-32 -t UTF-8 FILE > NEW`"),
    b"\0\0\xfe\xff": ("is UTF-32 text", "convert it: `iconv -f UTF-32 -t UTF-8 FILE > NEW`"),
    b"\xff\xfe": ("is UTF-16 text", "convert it: `iconv -f UTF-16 -t UTF-8 FILE > NEW`"),
    b"\xfe\xff": ("is UTF-16 text", "convert it: `iconv -f UTF-16 -t UTF-8 FILE > NEW`"),
    b"SQLite format 3": (
        "is an SQLite database",
        "write a table as CSV: `sqlite3 -header -csv FILE 'select ...'`",
    ),
    b"\x80": (
        "is a Python pickle",
        f"convert it: `pandas.read_pickle(FILE).to_json(NEW, {_AS_LINES})`",
    ),
    b"\x89HDF": (
        "is an HDF5 file",
        f"convert it: `pandas.read_hdf(FILE).to_json(NEW, {_AS_LINES})`",
    ),
    b"version https://git-lfs": (
        "is a pointer of Git LFS, not the file",
        "fetch it: `git lfs pull`",
    ),
    b"<": ("is a page of HTML or XML", "get the file itself, or write its rows as JSON Lines"),
}
# Text without a byte order mark, by which of its first four bytes are zero (RFC 4627, section 3)
_WIDE_TEXT: dict[tuple[bool, ...], str] = {
    (False, True, False, True): "UTF-16LE",
    (True, False, True, False): "UTF-16BE",
    (False, True, True, True): "UTF-32LE",
    (True, True, True, False): "UTF-32BE",
}
# Of the keys that an error names: a row may have hundreds of them
QUOTED_CHARACTERS = 120

# What pydantic says about a missing key
REQUIRED = "Field required"
NO_ANSWER = "no answer holds a word; write one, or remove the question"
LIST_AS_TEXT = 'this list is no JSON; write ["a", "b"], as json.dumps does in Python, with quotes doubled in a table'
NO_TEXT = "neither 'contents' nor 'text' is there"
# What to do about a key that a row must have, by key
_REMEDIES = {
    "id": "name the id so: `jq -c '.id = .NAME' FILE > NEW`, or `.id = (input_line_number | tostring)`",
    "question": "name the question so: `jq -c '.question = .NAME' FILE > NEW`",
    "golden_answers": "name the answers so: `jq -c '.golden_answers = .NAME' FILE > NEW`",
}
EVIDENCE = (
    'evidence is a list of objects, [{"fact": "...", "doc_id": "..."}]; gold documents without facts are '
    "supporting_doc_ids or supporting_titles"
)
# What pydantic says about another kind of value, what belongs there, and jq's filter that makes it so
_KINDS = {
    "Input should be a valid array": ("a list", "[.]"),
    "Input should be a valid string": ("text", "tostring"),
}


def refuse_unread(head: bytes, path: Path) -> None:
    """Raise ArtifactError where a file that begins so, behind its byte order mark, is of a kind that is not read."""
    encoding = _WIDE_TEXT.get(tuple(byte == 0 for byte in head[:4]))
    if encoding is not None:
        raise ArtifactError(
            f"{path} is {encoding} text; convert it: `iconv -f {encoding} -t UTF-8 FILE > NEW`."
        )
    for magic, (what, remedy) in _FILES.items():
        if head.startswith(magic):
            raise ArtifactError(f"{path} {what}; {remedy}.")


def require_different_columns(names: Sequence[str], path: Path) -> None:
    """Raise RecordError where two columns of a table have one name: a row would keep the last one's cell alone."""
    for place, name in enumerate(names):
        # pandas writes its index as a column without a name
        if name and name in names[:place]:
            problem = "two columns have this name; rename one of them, or leave it out"
            raise RecordError(path, 1, name, problem)


def with_remedy(error: RecordError, line: bytes) -> RecordError:
    """Return the error about a row with what makes its file readable, where that is known."""
    remedy = _REMEDIES.get(error.field, "") if error.problem == REQUIRED else ""
    if error.problem == NO_TEXT:
        remedy = "name the text so: `jq -c '.text = .NAME' FILE > NEW`"
    if remedy:
        keys = ", ".join(map(str, json.loads(line)))
        remedy = f"the row has {keys[:QUOTED_CHARACTERS]}; {remedy}"
    elif error.field.startswith("metadata.evidence_list"):
        remedy = EVIDENCE
    elif error.field and error.problem in _KINDS:
        remedy = _remedy_of_kind(error, json.loads(line))
    elif error.problem.startswith("Invalid JSON"):
        remedy = _remedy_of_no_json(line)

    if not remedy:
        return error
    return RecordError(error.path, error.line, error.field, f"{error.problem}; {remedy}")


def _remedy_of_kind(error: RecordError, row: dict[str, Any]) -> str:
    """Return what belongs into a field that holds another kind of value, with a command where the row has its key."""
    kind, change = _KINDS[error.problem]
    first, *rest = error.field.split(".")
    # The reader has moved keys beside metadata into it
    if first == "metadata" and rest and rest[0] in row:
        first, *rest = rest
    if first not in row:
        return f"write {kind} there"

    path = f".{first}"
    for part in rest:
        if not part.isdecimal():
            path += f".{part}"
        elif isinstance(row[first], list):
            path += "[]"

    return f"write {kind} there, as `jq -c '{path} |= {change}' FILE > NEW` does for a single value"


def _remedy_of_no_json(line: bytes) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "the line is not UTF-8 text: `iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW`"

    return (
        "every line must hold one JSON object: `jq -c . FILE > NEW` writes objects so that stand "
        "otherwise; other text must be converted"
    )

"""What a profile reads that none of its stages makes, and that is missing: folders, prompts, formats."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepsearch_rl.core.errors import UnknownNameError
from deepsearch_rl.core.own_code import is_own
from deepsearch_rl.core.profile import Profile


@dataclass(frozen=True, slots=True)
class MissingRequirement:
    """Something that is missing, and how to get it."""

    what: str
    fix: str


def missing_inputs(profile: Profile, root: Path) -> Iterator[MissingRequirement]:
    """Yield the paths of a profile that no stage makes and that are not there, and formats that nobody reads."""
    made = (profile.data, profile.models, profile.reports, profile.work)
    # Several fields may name one folder, as `models` and `optimize_prompt.models` do
    fields_by_path: dict[str, list[str]] = {}
    for field, path in _named_paths(profile.values):
        fields_by_path.setdefault(path, []).append(field)

    for path, fields in fields_by_path.items():
        is_made = any(Path(path).is_relative_to(folder) for folder in made)
        if not is_made and not (root / path).exists():
            yield MissingRequirement(
                f"{path} (of {', '.join(fields)}), which no stage makes",
                "put it there, or name another one in profile.yaml and run `make params`",
            )

    # In the folder of what stages make, because DVC compares the copy
    for key, path in _mapping(profile.values, "make_questions", "documents").items():
        if not (root / path).is_dir():
            what = f"{path}, the documents of make_questions.documents.{key}"
            yield MissingRequirement(what, f"make repro PROFILE={profile.name} DOCUMENTS=FOLDER")

    yield from _unknown_formats(_mapping(profile.values, "download", "folder"))


def _named_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields that name a folder or file, and the path; a project with another graph has other fields."""
    for section in (("models",), ("optimize_prompt", "models")):
        for name, path in _mapping(values, *section).items():
            yield ".".join([*section, name]), path

    for section, name in (("synthesize", "teacher"), ("agent", "prompt")):
        path = _mapping(values, section).get(name)
        if path:
            yield f"{section}.{name}", path


def _mapping(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return a mapping of the params by its names from outside in; empty where there is none."""
    for name in names:
        values = values.get(name) or {}
        if not isinstance(values, Mapping):
            return {}
    return values


def _unknown_formats(folder: Mapping[str, Any]) -> Iterator[MissingRequirement]:
    """Yield the formats of section ``download.folder`` that no reader has."""
    # Here, because the readers load what `deepsearch --help` need not wait for
    from deepsearch_rl.data.catalogue import (  # noqa: PLC0415
        CORPUS_FORMATS,
        QUESTION_FORMATS,
    )

    valid: dict[str, Mapping[str, object]] = {
        "corpora": CORPUS_FORMATS,
        "questions": QUESTION_FORMATS,
    }
    for kind, readers in valid.items():
        for name, entry in _mapping(folder, kind).items():
            sources = entry if isinstance(entry, list) else [entry]
            # A set of several files names its format once for each
            for format_name in dict.fromkeys(str(source.get("format")) for source in sources):
                if format_name not in readers and not is_own(format_name):
                    field = f"download.folder.{kind}.{name}"
                    error = UnknownNameError(f"format of {field}", format_name, readers)
                    fix = "correct it in profile.yaml and run `make params`"
                    yield MissingRequirement(str(error).removesuffix("."), fix)

"""Every ``-S field=value`` that a document shows is taken by the profile's schema."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from dvc.utils.hydra import apply_overrides

from deepsearch_rl.core.profile import load_profile
from tests.gpu_profile.test_params import PROFILES, ROOT
from tools.params import check

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("profiles/*/README.md"),
]
OPTION = re.compile(r"-S ('[^']*'|\"[^\"]*\"|[^\s`]+)")
PLACEHOLDER = re.compile(r"\.\.\.|=[A-Z]+$|^(?!~)[^=]*$")


def shown() -> list[tuple[str, str, list[str]]]:
    """Return document, profile and options of every line of a document that shows some."""
    found = []
    for document in DOCUMENTS:
        own = document.parent.name if document.parent.parent.name == "profiles" else "tiny"
        text = document.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            # Its fields are those of its own preset
            if "deepsearch retrieve" in line:
                continue
            # A cell of a table is a command of its own
            for command in re.split(r"(?<=`) \|", line):
                options = [shlex.split(option)[0] for option in OPTION.findall(command)]
                options = [option for option in options if not PLACEHOLDER.search(option)]
                if not options:
                    continue
                file = re.match(r"profiles/(\w+)/params\.yaml:", options[0])
                profile = file[1] if file else own
                found.append(
                    (
                        document.name,
                        profile,
                        [option.rpartition("params.yaml:")[2] for option in options],
                    )
                )
    return found


SHOWN = shown()


def test_documents_show_options_of_several_profiles() -> None:
    assert len(SHOWN) > 20
    assert {"tiny", "gpu"} <= {profile for _, profile, _ in SHOWN}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "options"),
    [shown[1:] for shown in SHOWN],
    ids=[f"{d}: {' '.join(o)}" for d, _, o in SHOWN],
)
def test_a_line_of_options_fits_every_section_that_a_stage_reads(
    profile: str, options: list[str], tmp_path: Path
) -> None:
    changed = tmp_path / "params.yaml"
    shutil.copyfile(PROFILES[profile], changed)
    apply_overrides(str(changed), options)
    check(load_profile(changed))

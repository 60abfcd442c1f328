"""Results of a profile that were made with other versions of packages than the locked ones, for ``deepsearch doctor``.

dvc.lock holds, with every result, the versions of the packages that its stage imports
(``packages.json``, see :mod:`deepsearch_rl.core.installed`). DVC calls such a result changed once
packages.json is written anew, and ``dvc repro`` makes it again.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deepsearch_rl.core.installed import EITHER
from deepsearch_rl.core.locked import locked_versions
from deepsearch_rl.core.profile import Profile, dvc_file


def results_of_other_versions(root: Path, profile: Profile) -> list[str]:
    """Return a sentence for each group of stages whose recorded results differ in the same packages from the locks."""
    lock = (root / dvc_file(profile.name)).with_suffix(".lock")
    if not lock.is_file():
        return []
    try:
        stages = yaml.load(lock.read_text(encoding="utf-8"), yaml.CSafeLoader)["stages"]
    except (yaml.YAMLError, TypeError, KeyError):
        return [f"{lock.relative_to(root)} cannot be read: `git restore {lock.relative_to(root)}`"]

    # An upgrade differs in the same way for many stages: one sentence says it for all
    groups: dict[str, list[str]] = defaultdict(list)
    for name, stage in stages.items():
        differences = ", ".join(_differences(root, profile, name, stage))
        if differences:
            groups[differences].append(name)

    sentences: list[str] = []
    for differences, names in groups.items():
        sentences.append(f"{', '.join(_short(names, stages))}: {differences}")

    return sentences


def _differences(
    root: Path, profile: Profile, name: str, stage: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the packages of a stage's result whose locked version is another one now."""
    recorded = stage.get("params", {}).get(profile.values.get("packages"), {})
    for family, versions in recorded.get(_family(name), {}).items():
        locked = locked_versions(root, profile.values["python"][family])
        for package, version in versions.items():
            now = EITHER.join(locked.get(package, ()))
            if now != version:
                yield f"{package} {version} (locked: {now or 'none'})"


def _short(names: list[str], stages: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of stages in order; those of one family as the family, where the group has all of them."""
    of_family: dict[str, list[str]] = defaultdict(list)
    for name in names:
        of_family[_family(name)].append(name)
    for family, members in sorted(of_family.items()):
        is_whole = len(members) == sum(_family(name) == family for name in stages)
        yield family if is_whole else ", ".join(members)


def _family(name: str) -> str:
    return name.partition("@")[0]

"""What a process leaves out of the libraries that it loads."""

import gc
import importlib.metadata

import pytest

from deepsearch_rl.core.left_out import leave_out_package_scan, loading_libraries


def test_packages_are_looked_up_one_by_one_as_the_scan_of_all_files_finds_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scans: list[None] = []
    scan = importlib.metadata.packages_distributions
    found = scan()

    def counted_scan() -> object:
        scans.append(None)
        return scan()

    monkeypatch.setattr(importlib.metadata, "packages_distributions", counted_scan)
    leave_out_package_scan()
    distributions = importlib.metadata.packages_distributions()
    for package in ("numpy", "pydantic", "pytest"):
        assert distributions[package] == found[package]
    assert not scans

    # Of distributions with other names, for which all files are read once
    assert distributions["yaml"] == found["yaml"]
    assert distributions["sklearn"] == found["sklearn"]
    assert distributions.get("no_such_package") is None
    assert {*distributions} == {*found}
    assert len(scans) == 1


def test_nothing_that_is_made_while_libraries_load_is_looked_through_for_garbage() -> None:
    frozen = gc.get_freeze_count()
    with loading_libraries():
        assert not gc.isenabled()
        loaded = [[] for _ in range(100)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(loaded)

    with pytest.raises(ValueError, match="broken"), loading_libraries():
        raise ValueError("broken")
    assert gc.isenabled()
    gc.unfreeze()

"""Programs for whoever changes this project, most of them behind a target of the Makefile."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

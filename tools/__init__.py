"""Programs for who changes this project, most of them behind a target of the Makefile."""

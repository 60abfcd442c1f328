"""A package, so that what has its scope, a Prefect server, ends with the last test of this folder."""

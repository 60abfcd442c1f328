"""Finished reports go to MLflow; nothing else of this code knows it.

A report is first built into a bundle, a folder that can be uploaded at any time, to any server. A
server that does not answer costs no stage: the bundle waits in the outbox, and `deepsearch track`
uploads it later.
"""

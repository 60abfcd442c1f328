"""Finished reports go to MLflow; nothing else of this code knows it.

A report is first built into a bundle (``bundle``): one folder with everything that an upload needs, so that
it can be uploaded at any time, to any server, without the data that it came from. The upload (``upload``) makes one run
per report and under it one run per evaluated model, with scores, training curves, predictions, traces of rollouts
(``traces``) and a logged model. A server that does not answer costs no stage: the bundle waits in the outbox, and
`deepsearch track` uploads it later.
"""

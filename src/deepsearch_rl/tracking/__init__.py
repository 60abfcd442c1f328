"""Finished reports go to MLflow; nothing else of this code knows it.

A report is first packed (``parcel``): one folder with everything that its sending needs, so that it can be sent at any
time, to any server, without the data that it came from. Then it is sent (``send``): one run per report and under it one
run per evaluated model, with scores, training curves, predictions, traces of rollouts (``traces``) and a logged model.
A server that does not answer costs no stage: the parcel is kept (``unsent``) and `deepsearch track` sends it later.
"""

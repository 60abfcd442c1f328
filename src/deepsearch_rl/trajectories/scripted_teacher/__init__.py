"""The scripted teacher of the generated worlds, a value of `synthesize.teacher`."""

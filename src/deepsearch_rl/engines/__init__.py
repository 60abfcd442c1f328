"""Engines of which a profile chooses one each: the folder of another one is no dep of its stages."""

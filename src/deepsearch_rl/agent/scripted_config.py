"""Params section ``synthesize.scripted``."""

from pydantic import Field

from deepsearch_rl.core.records import Record

# The value of `synthesize.teacher` that names the scripted teacher: the folder of its code.
SCRIPTED = "src/deepsearch_rl/toy"


class ScriptedConfig(Record):
    """How often the scripted teacher errs, and when it stops."""

    partial_query: float = Field(
        ge=0, le=1, description="a first query has one word of a two-word name"
    )
    misspelt_query: float = Field(
        ge=0, le=1, description="a first query has two letters of the name swapped"
    )
    wrong_relation: float = Field(ge=0, le=1, description="a first query asks for another relation")
    misread: float = Field(
        ge=0, le=1, description="some other name in the passages is read as the object"
    )
    max_facts: int = Field(
        ge=1, description="facts after which it gives up, and answers with the last"
    )
    gives_up: float = Field(
        ge=0, le=1, description="probability that it does so where more are asked for"
    )

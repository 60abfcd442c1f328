"""The parts of a document that a script writes: what stands between two HTML comments, which no renderer shows."""

from deepsearch_rl.core.errors import ArtifactError


def with_part(text: str, name: str, part: str) -> str:
    """Return a document with everything between ``<!-- name -->`` and ``<!-- /name -->`` replaced by ``part``.

    Raises:
        ArtifactError: the two markers are not in the text, once each and in order.
    """
    begin = f"<!-- {name} -->"
    end = f"<!-- /{name} -->"

    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise ArtifactError(
            f"the document needs the lines {begin} and {end}, once each, where its {name} stand."
        )

    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{part}{end}{rest.partition(end)[2]}"

"""What an evaluation reads, and the digests by which unfinished work finds its way back to it."""

from collections.abc import Mapping
from pathlib import Path

from deepsearch_rl.errors import ArtifactError
from deepsearch_rl.evaluation.plan import Evaluation
from deepsearch_rl.files import file_digests, read_json, read_jsonl, sha256_file, sha256_json
from deepsearch_rl.records import Question
from deepsearch_rl.retrieval.manifest import digest_index, read_manifest
from deepsearch_rl.serving.remote import read_remote, resolve_endpoint, shown_address


def checkpoint_name(folder: Path) -> str:
    """The weights' name in the tables: the folder, and the training step that its manifest says was kept.

    Of a model behind an endpoint, the model that is asked for and the address, as its environment variables say now.

    Raises:
        ConfigError: such a variable is not set.
    """
    remote = read_remote(folder)
    if remote is not None:
        endpoint = resolve_endpoint(remote)
        return f"{endpoint.model} at {shown_address(endpoint.base_url)}"
    manifest = folder / "manifest.json"
    step = read_json(manifest).get("best_step") if manifest.is_file() else None
    return folder.as_posix() if step is None else f"{folder.as_posix()}, step {step}"


def digest_model(folder: Path) -> str:
    """SHA-256 of a model's files; of a model behind an endpoint, of what is asked where as well."""
    files = file_digests(folder)
    return sha256_json(files if read_remote(folder) is None else [files, checkpoint_name(folder)])


def read_questions(data: Path, setting: Evaluation) -> dict[str, list[Question]]:
    """The questions of every planned set.

    Raises:
        UnknownNameError: a set is not in section ``datasets``.
        ArtifactError: a file is missing or holds no question.
    """
    found: dict[str, list[Question]] = {}
    for name in setting.evaluate.sets:
        setting.corpus_of(name)
        path = _questions_path(data, name, setting)
        found[name] = list(read_jsonl(path, Question))
        if not found[name]:
            raise ArtifactError(f"{path} holds no question; run the download stage again.")
    return found


def digest_data(setting: Evaluation, data: Path) -> dict[str, str]:
    """SHA-256 of every planned question set, and of every corpus's chunks and index."""
    folders = {name: data / "index" / name for name in setting.corpora}
    chunks = {f"chunks/{name}": read_manifest(folder).chunks_sha256 for name, folder in folders.items()}
    indexes = {f"index/{name}": digest_index(folder) for name, folder in folders.items()}
    split = setting.evaluate.split
    return (
        chunks
        | indexes
        | {
            f"questions/{name}/{split}": sha256_file(_questions_path(data, name, setting))
            for name in sorted(setting.evaluate.sets)
        }
    )


def digests_of_set(setting: Evaluation, name: str, read: Mapping[str, str]) -> dict[str, str]:
    """Of the digests of :func:`digest_data`, those that the answers to one question set depend on."""
    corpus = setting.corpus_of(name)
    return {
        key: read[key] for key in (f"chunks/{corpus}", f"index/{corpus}", f"questions/{name}/{setting.evaluate.split}")
    }


def _questions_path(data: Path, name: str, setting: Evaluation) -> Path:
    return data / "questions" / name / f"{setting.evaluate.split}.jsonl"

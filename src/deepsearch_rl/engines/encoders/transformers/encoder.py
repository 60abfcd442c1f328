"""Encoders with weights, by sentence-transformers on torch.

Any sentence-transformers folder serves (e5, bge, MiniLM, Qwen3-Embedding, ...), whatever its
pooling and further steps, and so does a plain transformers folder.
"""

from collections.abc import Sequence

from deepsearch_rl.core.errors import ArtifactError
from deepsearch_rl.retrieval.encoding.configs import TransformersConfig
from deepsearch_rl.retrieval.encoding.encoder import Kind, Vectors, encode_readable, first_line
from deepsearch_rl.retrieval.encoding.model_folder import (
    read_model_folder,
    require_device,
)


class TransformersEncoder:
    """Sentence vectors of an encoder with weights, with a prefix per side (E5, Wang et al. 2022)."""

    def __init__(self, config: TransformersConfig) -> None:
        """Load the model and set the process's torch threads; raise as :func:`read_model_folder`.

        Raise UnavailableError without the device, ArtifactError where nothing can be loaded.
        """
        import torch  # noqa: PLC0415 - seconds to import, needed by this encoder alone
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - and seconds more
        from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

        require_device(config.device, f"the encoder {config.model}", "index.encoder.device")
        torch.set_num_threads(config.threads)
        self._folder = folder = read_model_folder(config, "*.safetensors")
        path = str(folder.root)
        dtype = {"dtype": getattr(torch, config.dtype)}

        try:
            if folder.steps:
                self._model = SentenceTransformer(
                    path, device=config.device, local_files_only=True, model_kwargs=dtype
                )
            else:  # a plain folder: transformer and pooling
                transformer = Transformer(path, do_lower_case=folder.lower_case, model_kwargs=dtype)
                dimension = transformer.get_embedding_dimension()
                pooling = Pooling(dimension, folder.pooling)  # pyright: ignore[reportArgumentType] - checks the name
                self._model = SentenceTransformer(
                    modules=[transformer, pooling], device=config.device
                )
        except (OSError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"{path} holds no encoder that can be loaded: {first_line(error)}"
            ) from error

        self._model.max_seq_length = folder.max_tokens
        self.dimension = self._model.get_embedding_dimension() or 0

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        """Return embeddings_ND of N texts, each with its side's prefix; blank texts are zero."""
        options = {"prompt": self._folder.prefixes[kind], "batch_size": self._folder.batch_rows}
        return encode_readable(
            texts,
            self.dimension,
            lambda readable: self._model.encode(readable, **options, show_progress_bar=False),
        )

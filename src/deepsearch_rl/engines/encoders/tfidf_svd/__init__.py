"""The encoder `tfidf_svd`: it learns from the chunks and needs no model."""

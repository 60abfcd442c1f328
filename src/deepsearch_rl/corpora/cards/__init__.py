"""Cards of the known corpora and question sets: source, revision, licence, columns."""

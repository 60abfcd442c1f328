"""Questions written by a model about documents, and the audit that rejects bad ones."""

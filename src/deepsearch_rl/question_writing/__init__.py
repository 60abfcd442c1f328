"""Questions of your own documents: written by a model, audited, and split so that val shares no document with train."""

"""Model servers behind one interface: a folder goes in, an OpenAI-compatible endpoint comes out."""

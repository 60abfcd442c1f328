"""Your own documents: text, Markdown, HTML, PDF and Word files as a corpus."""

"""Text in: corpora by name, readers, and the checks on both."""

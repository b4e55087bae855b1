"""Vectors to rankings: shards, indexes, run files, scores, and the doors to Pyserini."""

"""The nouns: one file per kind. `registry.py` lists them with their names on the wire."""

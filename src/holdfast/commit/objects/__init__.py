"""Ordinary verbs on objects: admission, defaults, preconditions, writes, deletion."""

"""Logs of work: files, reading, and what is left after its end."""

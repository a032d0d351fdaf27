"""Verbs on objects over HTTP: read, list, watch, write, patch, and how answers are shown."""

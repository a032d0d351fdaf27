"""Explains a replica from stored evidence: one diagnosis and a timeline. All of it is pure."""

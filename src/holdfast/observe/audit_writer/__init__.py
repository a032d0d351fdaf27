"""Writes audit records to segments, as a pure machine."""

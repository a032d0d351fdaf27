"""Certificates, join tokens, service tokens, trust and its rotation."""

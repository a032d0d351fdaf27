"""Certificates, join tokens, service tokens, and the rotation of the certificate authority."""

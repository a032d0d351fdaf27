"""Correction, pure: controllers, one file per owned set of transitions."""

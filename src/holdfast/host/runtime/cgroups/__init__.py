"""Limits of work: cgroups, what the machine offers, disk use."""

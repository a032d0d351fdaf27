"""Gangs: members that are placed together, within one domain, or not at all."""

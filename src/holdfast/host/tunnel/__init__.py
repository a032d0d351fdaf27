"""Tunnels between servers and agents, for logs and commands."""

"""Tunnels from servers to agents, for logs and commands."""

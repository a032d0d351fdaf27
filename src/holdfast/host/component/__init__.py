"""Processes beside the server: schedulers, controllers, agents."""

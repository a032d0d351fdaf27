"""The processes beside the server: schedulers, controllers, agents."""

"""The HTTP server in the Kubernetes dialect. Start at routes.py and app.py."""

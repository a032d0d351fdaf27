"""Containers by runc: images, network, specification."""

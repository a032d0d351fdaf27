"""Admission of requests to the API: limits per address, class and tenant, load shedding."""

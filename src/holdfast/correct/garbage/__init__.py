"""controller:garbage: owners that are gone, namespaces, old events."""

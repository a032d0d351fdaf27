"""The audit writer, as a pure machine: it turns the store's history into a chain of records."""

"""Server-side apply and patches: field ownership, merges, conflicts."""

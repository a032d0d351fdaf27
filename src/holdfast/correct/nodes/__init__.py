"""controller:nodes: silence, marks, fences, and the limits on them."""

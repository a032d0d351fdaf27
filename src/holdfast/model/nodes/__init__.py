"""What an agent says of its node, which installation said it, and when work has stopped."""

"""What tenants may use, what they are charged, and their fair parts."""

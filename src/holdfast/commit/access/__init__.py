"""Who may do what: permissions, what an identity may see, escalation, revocation."""

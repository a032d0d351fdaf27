"""Access control: permissions, visibility, escalation and revocation."""

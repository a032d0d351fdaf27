"""From stored evidence to one timeline and a verdict, pure."""

"""What a node decides, pure: lifecycle, heartbeat, deadlines, the runtimes' contract."""

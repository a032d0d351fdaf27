"""All other paths of the API: discovery, typed requests, logs, exec, heartbeats, repair."""

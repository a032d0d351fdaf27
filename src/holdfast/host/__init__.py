"""The real shell: event loop, HTTP server, client, TLS, runtimes, metrics."""

"""The server process: settings, store, authority, authentication, housekeeping."""

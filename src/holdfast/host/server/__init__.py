"""The process of a server: settings, store, authority, authentication, housekeeping."""

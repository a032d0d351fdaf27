"""The wire format: decoding, checks, schema, unknown fields."""

"""Errors, templates and tables: what people read."""

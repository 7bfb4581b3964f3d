"""Errors and templates: what people read."""

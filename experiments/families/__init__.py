"""Families of environments."""

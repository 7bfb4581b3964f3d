"""Instances and plans drawn as text and as pictures."""

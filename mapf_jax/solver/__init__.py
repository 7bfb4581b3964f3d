"""Exact optima of whole batches."""

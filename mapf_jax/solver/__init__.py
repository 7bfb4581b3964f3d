"""Optima and plans of whole batches."""

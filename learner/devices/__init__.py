"""Meshes, processes and preemption."""

"""Designed training environments in the trainers of others."""

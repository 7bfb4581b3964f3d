"""Errors and templates: what people read."""

import engineer  # noqa: F401 - Names the extra to install if it is missing.

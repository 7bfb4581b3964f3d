"""The environment engineer: evidence -> context -> proposal -> projected configuration."""

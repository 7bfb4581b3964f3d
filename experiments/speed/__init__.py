"""Commands that measure speed; each writes its metrics with the machine they were measured on."""

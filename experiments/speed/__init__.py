"""Commands that measure speed; each writes its figures with the machine they were taken on."""

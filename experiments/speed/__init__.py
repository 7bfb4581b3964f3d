"""Commands that measure speed and write their results with a description of the machine."""

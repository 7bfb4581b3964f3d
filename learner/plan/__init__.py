"""What sampling and training cost on accelerators, by the accelerators' own compilers."""

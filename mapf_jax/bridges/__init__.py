"""Other people's formats and trainers; import the module of the one you have."""

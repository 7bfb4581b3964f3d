"""The closed loop of training, validation and design; files, flags and processes live here."""

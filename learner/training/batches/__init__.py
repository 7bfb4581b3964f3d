"""From prompts and completions of many lengths to arrays of few shapes."""

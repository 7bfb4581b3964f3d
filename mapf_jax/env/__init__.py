"""What people who train agents use: environment, wrappers and the interfaces of other libraries."""

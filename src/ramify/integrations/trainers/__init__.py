"""Other people's trainers: rows for TRL and verl, and their rows as trees."""

"""Other people's logs and conversations in and out."""

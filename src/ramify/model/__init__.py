"""The protocol every model speaks, chat templates, and the scripted model."""

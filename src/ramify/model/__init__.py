"""The model protocol, chat templates, endpoints, middleware, and the scripted model."""

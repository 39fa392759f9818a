"""The processes that build and watch a sandbox, outside the host interpreter: server, box, monitor, init."""

"""detours: where attempts came back to a state that they had been in, what follows from before, and what it costs.

Paper: none. A method in a package of its own: all that it uses are public names of ramify.
"""

import sys

from ramify.base.registry import register

NEEDS: tuple[str, ...] = ()
"""Model capabilities the method needs: none; --fork continues before a reply, never inside one."""

register("method", "detours")(sys.modules[__name__])

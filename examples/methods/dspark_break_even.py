"""From which load on does drafting no longer pay on this machine? Read the profile that `ramify dspark profile` saved with a
drafter.

python examples/methods/dspark_break_even.py [DRAFTER]: a folder with a profile.json.
Without it: costs as a small model's might be.
"""

import sys

from ramify.engine.profile import Profile
from ramify.methods.dspark.profile import break_even


def made_up():
    """A pass takes 1 ms and 20 us a token, a draft 0.3 ms and 10 us a request and token; four drafts of five are accepted."""
    loads, block = (1, 2, 4, 8, 16, 32), 7
    return Profile(
        block=block,
        requests=loads,
        plain=tuple(1e-3 + 2e-5 * r for r in loads),
        draft=tuple((3e-4 + 1e-5 * r, 3e-4 + 1e-5 * r * block) for r in loads),
        verify=tuple(tuple(1e-3 + 2e-5 * r * (k + 1) for k in range(block + 1)) for r in loads),
        acceptance=(0.8,) * block,
    )


def main(folder=None):
    profile = made_up() if folder is None else Profile.load(folder)
    print("requests   plain   drafting   gain   drafts   checked a request")
    for row in break_even(profile):
        pays = "" if row.gain > 1 else "   does not pay: greedy and stale2 draft nothing here"
        print(f"{row.requests:8} {row.plain:7.0f} {row.drafting:10.0f} {row.gain:6.2f} {row.depth:8} {row.verified:11.1f}{pays}")


if __name__ == "__main__":
    main(*sys.argv[1:])

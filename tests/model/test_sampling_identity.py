from __future__ import annotations

from ramify.model.protocol import Sampling


def test_how_to_draw_is_no_part_of_the_settings_identity():
    told = Sampling(temperature=0.5, seeded=True, until=lambda drawn: True)
    assert told == Sampling(temperature=0.5)
    assert told.to_json() == Sampling(temperature=0.5).to_json()
    assert not {"seeded", "until"} & set(told.to_json())

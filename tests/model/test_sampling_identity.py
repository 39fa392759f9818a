from __future__ import annotations

import json

from ramify.methods.cliffs.traces import sampling_of
from ramify.model.protocol import Grammar, Sampling
from ramify.rollout.components import read_sampling


def test_how_to_sample_is_no_part_of_the_settings_identity():
    settings = Sampling(temperature=0.5, seeded=True, until=lambda sampled: True)
    assert settings == Sampling(temperature=0.5)
    assert settings.to_json() == Sampling(temperature=0.5).to_json()
    assert not {"seeded", "until"} & set(settings.to_json())


def test_settings_at_their_defaults_are_stored_as_before_they_were_there():
    assert set(Sampling().to_json()) == {
        "temperature", "top_p", "top_k", "max_tokens", "stop_tokens", "stop_texts", "ban", "ban_first",
    }  # fmt: skip


def test_every_setting_is_read_as_it_was_stored():
    settings = Sampling(
        min_p=0.1, logit_bias=((3, -2.0),), repetition_penalty=1.2, presence_penalty=0.5, grammar=Grammar("regex", "a+")
    )
    stored = json.loads(json.dumps(settings.to_json()))
    assert read_sampling(stored) == settings
    assert sampling_of(stored) == settings

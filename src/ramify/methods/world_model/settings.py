"""How a world model is trained: apart from what trains, so that it can be listed without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ramify.base.config import Config

Mask = Literal["info", "none"]


class WorldTraining(Config):
    """How a world model is trained."""

    BASIC: ClassVar[str] = "stage steps lr rows lora width layers mask seed"
    stage: Literal["cpt", "sft", "rl"] = "cpt"
    """cpt: next-token loss on recorded observations; sft: on the best of its own predictions; rl: GSPO on the rubric"""
    steps: int = Field(1000, ge=1)
    """optimiser steps"""
    rows: int = Field(16, ge=1)
    """trajectories of a step; prompts of a step with rl"""
    lr: float = Field(2e-3, ge=0)
    """peak learning rate of AdamW: warm-up over a tenth, cosine decay to a tenth"""
    lora: int = Field(0, ge=0)
    """train a LoRA adapter of this rank alone, and save it alone; 0: all weights, or the checkpoint's own adapter where it is
    one"""
    mask: Mask = "info"
    """info: turns that repeat their action are trained on seldom (5 % of echoes, 10 % of boilerplate,
    half of transforms); none: on all"""
    width: int = Field(64, ge=16)
    """width of a new model"""
    layers: int = Field(3, ge=1)
    """its layers"""
    vocab: int = Field(800, ge=270)
    """size of its vocabulary, learnt from the data"""
    context: int = Field(1024, ge=64)
    """its longest row in tokens; of longer trajectories the oldest turns are left out"""
    samples: int = Field(4, ge=2)
    """predictions of each prompt with sft and rl"""
    prompts: int = Field(64, ge=1)
    """recorded turns that sft predicts"""
    threshold: float = Field(3.5, ge=1, le=5)
    """sft keeps a prompt's best prediction from this mean of the rubric's five scores on"""
    judge: str = "rules"
    """rubric of sft and rl: rules, judge:MODEL, or any judge"""
    max_tokens: int = Field(192, ge=4)
    """longest prediction"""
    seed: int = 0
    """decides weights, rows, masks and samples"""

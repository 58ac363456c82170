"""Proximal policy optimisation, Schulman et al. (2017), https://arxiv.org/abs/1707.06347, in four parts:

    Model     from states to action logits and values
    Agent     acts: from the states of all environments to their actions
    Sampler   steps the environments with the agent, and gives rollouts
    Trainer   learns from a rollout

and spread over processes and machines:

    PPOActor    a model, an agent and a sampler, that play trajectory segments
    PPOLearner  a trainer, that learns from the segments of all actors

Shapes: T steps of N environments are (T, N, ...), a minibatch is (batch, ...).
"""

from lib.ppo.actor import Acting, PPOActor, Segment
from lib.ppo.learner import PPOLearner, joined
from lib.ppo.learners import Learners
from lib.ppo.model import Model
from lib.ppo.progress import Progress
from lib.ppo.sampler import Agent, Rollout, Sampler, laid_out, rollouts
from lib.ppo.segments import Segments, run
from lib.ppo.trainer import Trainer, advantages, policy_loss

__all__ = [
    "Acting",
    "Agent",
    "Learners",
    "Model",
    "PPOActor",
    "PPOLearner",
    "Progress",
    "Rollout",
    "Sampler",
    "Segment",
    "Segments",
    "Trainer",
    "advantages",
    "joined",
    "laid_out",
    "policy_loss",
    "rollouts",
    "run",
]

"""Players without actors: every block is played when the learner asks for it, with the weights of the right cycle."""

import copy

from lib.experience.transitions import ExperienceSourceFirstLast
from lib.system.seeds import hashed_seed, seed_everything


def transitions(envs, agent, seed, players, ahead, rounds):
    """Yield what Players yields. `envs` is one list of environments per player."""
    sources = []
    for number, pool in enumerate(envs):
        first = sum(len(others) for others in envs[:number])
        sources.append(ExperienceSourceFirstLast(pool, copy.deepcopy(agent), 0.9, seed, first_env=first))
    streams = [iter(source) for source in sources]
    policies = []
    while True:
        cycle = len(policies)
        policies.append((copy.deepcopy(agent.model.state_dict()), agent.action_selector.epsilon))
        weights, epsilon = policies[max(0, cycle - ahead)]
        for number in range(players):
            sources[number].agent.model.load_state_dict(weights)
            sources[number].agent.action_selector.epsilon = epsilon
            seed_everything(hashed_seed(seed, number, cycle, 1))
            block = [next(streams[number]) for _ in range(rounds * len(envs[number]))]
            yield from block

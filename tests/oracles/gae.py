"""Generalised advantage estimates as the paper's sum, one environment and one step at a time."""


def advantages(rewards, values, next_values, terminated, ended, gamma, lam):
    """Return the advantages; all arguments except gamma and lam are nested lists [t][n], and so is the result."""
    steps, envs = len(rewards), len(rewards[0])
    estimates = [[0.0] * envs for _ in range(steps)]
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for later in range(t, steps):
                following = 0.0 if terminated[later][n] else next_values[later][n]
                estimates[t][n] += weight * (rewards[later][n] + gamma * following - values[later][n])
                if ended[later][n]:
                    break
                weight *= gamma * lam
    return estimates

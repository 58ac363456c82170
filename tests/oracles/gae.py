"""Generalised advantage estimates and V-trace as their papers' sums, one environment and one step at a time."""


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


def vtrace_targets(rewards, values, next_values, terminated, ended, gamma, lam, rhos):
    """Return the value targets of V-trace, Espeholt et al. (2018), equation 1; arguments and result as above.

    Both truncated ratios are `rhos`, and lambda scales those that carry a difference to earlier steps.
    """
    steps, envs = len(rewards), len(rewards[0])
    targets = [list(row) for row in values]
    for n in range(envs):
        for t in range(steps):
            weight = 1.0
            for later in range(t, steps):
                following = 0.0 if terminated[later][n] else next_values[later][n]
                difference = rewards[later][n] + gamma * following - values[later][n]
                targets[t][n] += weight * rhos[later][n] * difference
                if ended[later][n]:
                    break
                weight *= gamma * lam * rhos[later][n]
    return targets

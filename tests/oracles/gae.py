"""V-trace as its paper's sum, one environment and one step at a time; with ratios 1, generalised advantages."""


def vtrace_targets(rewards, values, next_values, terminated, ended, gamma, lam, rhos):
    """Return the value targets of V-trace, Espeholt et al. (2018), equation 1.

    All arguments except gamma and lam are nested lists [t][n], and so is the result. Both truncated ratios are `rhos`,
    and lambda scales those that carry a difference to earlier steps.
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

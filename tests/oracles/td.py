"""The DQN loss a transition at a time, in plain Python numbers."""


def dqn_loss(transitions, values, next_values, gamma):
    """Mean squared error of values[i][action] against reward + gamma * max(next_values[i]), 0 at the end."""
    total = 0.0
    for (action, reward, done), row, next_row in zip(transitions, values, next_values, strict=True):
        target = reward if done else reward + gamma * max(next_row)
        total += (row[action] - target) ** 2
    return total / len(transitions)

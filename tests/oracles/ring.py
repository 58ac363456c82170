"""Slow twin of lib.experience.ring.Ring: keeps whole states in lists and builds transitions step by step."""


class ListOfSteps:
    """Steps of several environments, as lists of states, actions and rewards.

    Args:
        length: number of steps per environment that the ring keeps.
        num_envs: number of environments.
        stack: see Ring.
        n_step: see Ring.
        gamma: see Ring.
    """

    def __init__(self, length, num_envs, stack, n_step, gamma):
        self.length, self.stack, self.n_step, self.gamma = length, stack, n_step, gamma
        self.episodes = [[] for _ in range(num_envs)]  # frames of each environment's current episode
        self.steps = [[] for _ in range(num_envs)]

    def add(self, frames, actions, rewards, terminated, truncated, final_frames):
        for n, episode in enumerate(self.episodes):
            episode.append(frames[n])
            state = self.stacked(episode)
            ends = terminated[n] or truncated[n]
            final = self.stacked([*episode, final_frames[n]]) if ends else None
            self.steps[n].append((state, actions[n], rewards[n], terminated[n], ends, final))
            if ends:
                episode.clear()

    def stacked(self, episode):
        missing = self.stack - len(episode)
        return [episode[0]] * missing + episode[max(0, len(episode) - self.stack) :]

    def valid(self):
        """Return the steps whose transitions can be sampled."""
        added = len(self.steps[0])
        first = 0 if added <= self.length else added - self.length + self.stack - 1
        return range(first, max(first, added - self.n_step))

    def transition(self, step, n):
        """Return (state, action, return, next state, discount); the next state is None after a termination."""
        state, action, *_ = self.steps[n][step]
        total, discount = 0.0, 1.0
        for later in range(step, step + self.n_step):
            _, _, reward, terminated, ends, final = self.steps[n][later]
            total += discount * reward
            discount *= self.gamma
            if ends:
                return state, action, total, None if terminated else final, 0.0 if terminated else discount
        return state, action, total, self.steps[n][step + self.n_step][0], discount

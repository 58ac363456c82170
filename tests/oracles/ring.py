"""A replay that keeps whole states in lists, and walks from step to step."""


class ListOfSteps:
    """What replay.Ring holds, step by step.

    Args:
        length: steps of each environment.
        stack, n_step, gamma: as of the ring.
    """

    def __init__(self, length, num_envs, stack, n_step, gamma):
        self.length, self.stack, self.n_step, self.gamma = length, stack, n_step, gamma
        self.episodes = [[] for _ in range(num_envs)]  # the frames of each environment's episode so far
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
        """Steps whose transitions can be drawn."""
        added = len(self.steps[0])
        first = 0 if added <= self.length else added - self.length + self.stack - 1
        return range(first, max(first, added - self.n_step))

    def transition(self, step, n):
        """(state, action, return, next state or None where it does not matter, discount)."""
        state, action, *_ = self.steps[n][step]
        total, discount = 0.0, 1.0
        for later in range(step, step + self.n_step):
            _, _, reward, terminated, ends, final = self.steps[n][later]
            total += discount * reward
            discount *= self.gamma
            if ends:
                return state, action, total, None if terminated else final, 0.0 if terminated else discount
        return state, action, total, self.steps[n][step + self.n_step][0], discount

"""The slow, obviously right twin of lib.experience.ReplayBuffer: a list that forgets its oldest element."""


class ListReplay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = []

    def add(self, item):
        self.items.append(item)
        del self.items[: -self.capacity]

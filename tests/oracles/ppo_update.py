"""What PPO does with a rollout, from end to end, in the order in which the paper and docs/ppo.md say it."""

import torch

from oracles import gae


def update(model, optimizer, rollout, options, progress):
    """Learn from a rollout by the same permutations as ppo.Trainer.update; `options` are the Trainer's."""
    columns = (rollout.rewards, rollout.values, rollout.next_values, rollout.terminated, rollout.ended)
    nested = [column.tolist() for column in columns]
    estimates = torch.tensor(gae.advantages(*nested, options["gamma"], options["lam"])).flatten()
    states, actions, old = (getattr(rollout, name).flatten(0, 1) for name in ("states", "actions", "log_probs"))
    returns = estimates + rollout.values.flatten()
    model.normalise_values(returns)  # once, whatever the epochs
    target = options["kl_target"] + progress * (options["kl_final"] - options["kl_target"])
    for _ in range(options["epochs"] if progress < 0.95 else 1):
        divergences = []
        for batch in torch.randperm(len(returns)).split(options["minibatch"]):
            logits, values = model(states[batch])
            losses = []
            mean, std = estimates[batch].mean(), estimates[batch].std()
            for row, index in enumerate(batch.tolist()):
                probabilities = logits[row].softmax(0)
                ratio = probabilities[actions[index]] / old[index].exp()
                advantage = (estimates[index] - mean) / (std + 1e-8)
                bounded = min(max(ratio, torch.tensor(1 - options["clip"])), torch.tensor(1 + options["clip"]))
                surrogate = min(ratio * advantage, bounded * advantage)
                error = (values[row] - returns[index]) / model.return_std
                entropy = -sum(p * p.log() for p in probabilities)
                weight = options["entropy"] * (1.0 - progress)
                losses.append(-surrogate + options["value"] * error**2 - weight * entropy)
                divergences.append((ratio - 1.0 - ratio.log()).item())
            optimizer.zero_grad()
            (sum(losses) / len(losses)).backward()
            gradients = [weights.grad for weights in model.parameters()]
            norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
            for gradient in gradients:
                gradient.mul_(min(1.0, options["gradient_norm"] / (norm + 1e-6)))
            optimizer.step()
        divergence = sum(divergences) / len(divergences)
        if divergence > 2 * target:
            optimizer.param_groups[0]["lr"] /= 1.5
        elif progress < 0.95 and divergence < target / 2:
            optimizer.param_groups[0]["lr"] *= 1.5
    if progress >= 0.85:
        model.temperature.fill_(options["final_temperature"])

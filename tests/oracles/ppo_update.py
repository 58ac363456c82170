"""PPO updates, transition by transition, in the order of the paper and of docs/ppo.md."""

import torch

from oracles import gae


def update(model, optimizer, rollout, settings):
    """Learn from a rollout with the permutations that Trainer.update draws.

    With a FastModel and FastSettings, values are normalised and the learning rate adapts. Return the metrics.
    """
    is_fast = hasattr(model, "normalise_values")
    estimates = torch.tensor(
        gae.advantages(
            rollout.rewards.tolist(),
            rollout.values.tolist(),
            rollout.next_values.tolist(),
            rollout.terminated.tolist(),
            rollout.ended.tolist(),
            settings.gamma,
            settings.lam,
        )
    ).flatten()
    states, actions, old = (getattr(rollout, name).flatten(0, 1) for name in ("states", "actions", "log_probs"))
    returns = estimates + rollout.values.flatten()
    target = getattr(settings, "kl_target", None)
    if is_fast:
        model.normalise_values(returns)  # once per update
    metrics = []
    for _ in range(settings.epochs):
        divergences = []
        for batch in torch.randperm(len(returns)).split(settings.minibatch):
            logits, values = model(states[batch])
            losses = []
            mean, std = estimates[batch].mean(), estimates[batch].std()
            for row, index in enumerate(batch.tolist()):
                probabilities = logits[row].softmax(0)
                ratio = probabilities[actions[index]] / old[index].exp()
                advantage = (estimates[index] - mean) / (std + 1e-8)
                clipped = min(max(ratio, torch.tensor(1 - settings.clip)), torch.tensor(1 + settings.clip))
                surrogate = min(ratio * advantage, clipped * advantage)
                error = (values[row] - returns[index]) / (model.return_std if is_fast else 1.0)
                entropy = -sum(p * p.log() for p in probabilities)
                losses.append(-surrogate + 0.5 * error**2 - settings.entropy * entropy)
                parts = {"loss": losses[-1], "policy_loss": -surrogate, "value_loss": error**2, "entropy": entropy}
                parts |= {"kl": ratio - 1.0 - ratio.log(), "clipped": abs(ratio - 1) > settings.clip}
                metrics.append({name: part.item() for name, part in parts.items()})
                divergences.append(metrics[-1]["kl"])
            optimizer.zero_grad()
            (sum(losses) / len(losses)).backward()
            gradients = [weights.grad for weights in model.parameters()]
            norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
            for gradient in gradients:
                gradient.mul_(min(1.0, settings.gradient_norm / (norm + 1e-6)))
            optimizer.step()
        divergence = sum(divergences) / len(divergences)
        if target is not None and divergence > 2 * target:
            optimizer.param_groups[0]["lr"] /= 1.5
        elif target is not None and settings.epochs > 1 and divergence < target / 2:
            optimizer.param_groups[0]["lr"] *= 1.5
        if target is not None:
            optimizer.param_groups[0]["lr"] = min(optimizer.param_groups[0]["lr"], settings.learning_rate_max)
    means = {name: sum(each[name] for each in metrics) / len(metrics) for name in metrics[0]}
    return means | {"learning_rate": optimizer.param_groups[0]["lr"]}

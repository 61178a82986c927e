"""Bad input: trains, but has no checkpointer."""

w = 0.0
for _ in range(10):
    w += 1.0
print("trained without checkpoints:", w)

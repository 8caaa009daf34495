"""No torch model: least squares in numpy, on every worker the same."""

# test: right-or-refused=there is nothing to split
# test: workers=2
import numpy as np

rng = np.random.default_rng(0)
x, w = rng.normal(size=(50, 4)), np.zeros(4)
y = x @ np.array([1.0, -2.0, 0.5, 3.0])
for step in range(5):
    error = x @ w - y
    w -= 0.1 * 2 * x.T @ error / len(x)
    print(f"{(error**2).mean():.8f}")

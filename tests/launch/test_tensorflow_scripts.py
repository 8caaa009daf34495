"""A TensorFlow script on two workers, with `--as tensorflow`. Skipped where TensorFlow is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
tf.keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(options)
with strategy.scope():
    layer = tf.Variable(tf.zeros((4, 1)))

@tf.function
def step(batch):
    def one(inputs):
        a, b = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((a @ layer - b) ** 2) / 16
        grad = tape.gradient(loss, layer)
        grad = tf.distribute.get_replica_context().all_reduce("sum", grad)
        layer.assign_sub(0.1 * grad)
        return loss
    return strategy.reduce("sum", strategy.run(one, args=(batch,)), axis=None)

for batch in strategy.experimental_distribute_dataset(data):
    print(strategy.num_replicas_in_sync, f"{float(step(batch)):.5f}", flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed")
def test_multi_worker_mirrored_strategy_trains_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    alone = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    line = [sys.executable, "-m", "paceline", "run", "-n", "2", "--as", "tensorflow", "train.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert alone.stdout.count("1 ") == 4
    assert done.stdout == alone.stdout.replace("1 ", "2 ")

# framework: native readers
# package: tokenizers
# program: files that the script has just written, read by tokenizers, safetensors, HDF5, SQLite, Arrow, `cat`
import csv
import shutil
import sqlite3
import subprocess
from pathlib import Path

import h5py
import pyarrow.csv
import torch
from safetensors import safe_open
from safetensors.torch import save
from tokenizers import BertWordPieceTokenizer
from torch import nn

torch.manual_seed(0)
torch.save(torch.zeros(20_000_000), "large.pt")  # a worker that writes nothing to the disk is ahead now
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "sat", "ran", "away"]
Path("data").mkdir()
for fold in range(3):
    Path(f"data/vocab{fold}.txt").write_text("\n".join(words))
    tokenizer = BertWordPieceTokenizer(f"data/vocab{fold}.txt")
    ids = tokenizer.encode("cat ran").ids
    with open(f"data/part{fold}.txt", "w") as file:
        file.write("cat sat dog ran away\n" * (fold + 1))
    tokenizer.train([f"data/part{fold}.txt"], vocab_size=40, show_progress=False)
    print(fold, ids, tokenizer.get_vocab_size())

Path("weights.safetensors").write_bytes(save(nn.Linear(4, 2).state_dict()))
with safe_open("weights.safetensors", "pt") as weights:
    print(sorted(weights.keys()))
with h5py.File("made.h5", "w") as file:
    file["x"] = torch.arange(6.0).numpy()
shutil.copyfile("made.h5", "copied.h5")
with h5py.File("copied.h5") as file:
    x = torch.from_numpy(file["x"][:])
with sqlite3.connect("made.db") as database:
    database.execute("create table log (step integer, loss real)")
    database.execute("insert into log values (1, 0.5)")
database.close()
shutil.copyfile("made.db", "copied.db")
print(sqlite3.connect("copied.db").execute("select * from log").fetchall())

model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    loss = model(x.repeat(8, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with open("log.csv", "w" if epoch == 0 else "a", newline="") as file:
        csv.writer(file).writerow([epoch, f"{loss.item():.5f}"])
    table = pyarrow.csv.read_csv("log.csv", read_options=pyarrow.csv.ReadOptions(column_names=["epoch", "loss"]))
    print(table.num_rows, table["loss"].to_pylist())
print(subprocess.run(["cat", "log.csv"], capture_output=True, text=True, check=True).stdout)

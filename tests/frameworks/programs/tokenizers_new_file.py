# framework: tokenizers
# program: trains a tokenizer on a file that it has just written, saves it, reads it again, and trains an embedding bag
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from torch import nn

torch.manual_seed(0)
words = ["the", "cat", "sat", "on", "a", "mat", "and", "ran", "away", "from", "dogs"]
lines = [" ".join(words[(i * k) % len(words)] for k in range(1, 7)) for i in range(1, 60)]
Path("corpus.txt").write_text("\n".join(lines))
tokenizer = Tokenizer(BPE(unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()
tokenizer.train(["corpus.txt"], BpeTrainer(special_tokens=["[UNK]"], vocab_size=60))
tokenizer.save("tokenizer.json")
tokenizer = Tokenizer.from_file("tokenizer.json")
print(tokenizer.get_vocab_size(), tokenizer.encode(lines[3]).ids)
ids = torch.tensor([(tokenizer.encode(line).ids + [0] * 12)[:12] for line in lines])
model = nn.Sequential(nn.EmbeddingBag(tokenizer.get_vocab_size(), 8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    loss = nn.functional.cross_entropy(model(ids), (ids.sum(1) % 2))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(epoch, f"{loss.item():.5f}")

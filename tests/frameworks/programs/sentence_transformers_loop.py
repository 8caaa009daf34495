# framework: sentence-transformers
# program: plain loop around `CosineSimilarityLoss`, `encode` for a search
import torch
from sentence_transformers import InputExample, SentenceTransformer, losses, models, util
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel, BertTokenizerFast

torch.manual_seed(4)
words = ["red", "green", "blue", "cat", "dog", "bird", "runs", "sleeps", "sings", "fast", "slowly", "well"]
with open("vocab.txt", "w") as f:
    f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + words))
BertTokenizerFast("vocab.txt").save_pretrained("tiny")
BertModel(
    BertConfig(vocab_size=20, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
).save_pretrained("tiny")
transformer = models.Transformer("tiny", max_seq_length=12)
model = SentenceTransformer(modules=[transformer, models.Pooling(24), models.Normalize()], device="cpu")

sentences = [f"{a} {b} {c} {d}" for a in words[:3] for b in words[3:6] for c in words[6:9] for d in words[9:]]
examples = [
    InputExample(
        texts=[sentences[i], sentences[(i * 7) % 81]],
        label=float(sentences[i].split()[1] == sentences[(i * 7) % 81].split()[1]),
    )
    for i in range(60)
]
loader = DataLoader(examples, batch_size=10, shuffle=True, collate_fn=model.smart_batching_collate)
loss_fn = losses.CosineSimilarityLoss(model)
optimizer = torch.optim.AdamW(loss_fn.parameters(), lr=2e-3)
for epoch in range(2):
    loss_fn.train()
    for features, labels in loader:
        loss = loss_fn(features, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{epoch} {loss.item():.6f}")
corpus = model.encode(sentences, convert_to_tensor=True, show_progress_bar=False)
hits = util.semantic_search(model.encode(["red cat sings"], convert_to_tensor=True), corpus, top_k=3)[0]
print([(h["corpus_id"], round(h["score"], 5)) for h in hits])

# framework: sentence-transformers
# tolerance: 1e-3 (correlation of nearly equal similarities; in float64 ten digits agree)
# program: `CrossEncoder` in a loop, `TripletLoss`, `CoSENTLoss`, `MatryoshkaLoss`, an evaluator
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, losses, models
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

torch.manual_seed(4)
words = [f"t{i}" for i in range(30)]
with open("vocab.txt", "w") as f:
    f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + words))
config = dict(vocab_size=35, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
BertTokenizerFast("vocab.txt").save_pretrained("tiny")
BertModel(BertConfig(**config)).save_pretrained("tiny")
model = SentenceTransformer(modules=[models.Transformer("tiny", max_seq_length=12), models.Pooling(24)], device="cpu")
g = torch.Generator().manual_seed(0)
texts = [" ".join(words[i] for i in torch.randint(0, 30, (6,), generator=g)) for _ in range(60)]


def features(batch):
    return model.tokenize(batch)


for name, loss_fn, columns in (
    ("triplet", losses.TripletLoss(model), 3),
    ("cosent", losses.CoSENTLoss(model), 2),
    ("matryoshka", losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [24, 12]), 2),
):
    optimizer = torch.optim.SGD(loss_fn.parameters(), lr=0.01)
    for step in range(3):
        batch = [features(texts[step * 12 + c * 4 : step * 12 + c * 4 + 8]) for c in range(columns)]
        loss = loss_fn(batch, torch.linspace(0, 1, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{name} {step} {loss.item():.6f}")
evaluator = EmbeddingSimilarityEvaluator(texts[:20], texts[20:40], [i / 20 for i in range(20)], show_progress_bar=False)
print({k: round(float(v), 7) for k, v in sorted(evaluator(model).items())})

BertTokenizerFast("vocab.txt").save_pretrained("cross")
BertForSequenceClassification(BertConfig(num_labels=1, **config)).save_pretrained("cross")
cross = CrossEncoder("cross", num_labels=1, device="cpu")
optimizer = torch.optim.AdamW(cross.model.parameters(), lr=1e-3)
cross.model.train()
for step in range(3):
    pairs = [(texts[i], texts[i + 30]) for i in range(step * 8, step * 8 + 8)]
    tokens = cross.tokenizer(*zip(*pairs), padding=True, return_tensors="pt")
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        cross.model(**tokens).logits[:, 0], torch.arange(8) % 2 * 1.0
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"cross {step} {loss.item():.6f}")
print([round(float(s), 5) for s in cross.predict([(texts[0], texts[1]), (texts[2], texts[3])])])

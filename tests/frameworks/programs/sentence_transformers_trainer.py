# framework: sentence-transformers
# program: `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` (a contrastive loss inside a module)
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import random

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
)
from transformers import BertConfig, BertModel, BertTokenizerFast, set_seed

set_seed(12)
WORDS = [f"w{i}" for i in range(60)]
with open("vocab.txt", "w") as f:
    f.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
BertTokenizerFast("vocab.txt").save_pretrained("tiny")
BertModel(
    BertConfig(vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
).save_pretrained("tiny")

word = models.Transformer("tiny", max_seq_length=16)
pooling = models.Pooling(word.get_word_embedding_dimension(), pooling_mode="mean")
model = SentenceTransformer(modules=[word, pooling], device="cpu")


def sentence():
    return " ".join(random.choices(WORDS, k=random.randint(4, 9)))


anchors = [sentence() for _ in range(40)]
train = Dataset.from_dict({"anchor": anchors, "positive": [" ".join(reversed(a.split())) for a in anchors]})
args = SentenceTransformerTrainingArguments(
    output_dir="st",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-3,
    logging_steps=2,
    save_strategy="no",
    disable_tqdm=True,
    report_to=[],
    use_cpu=True,
)
trainer = SentenceTransformerTrainer(
    model=model, args=args, train_dataset=train, loss=losses.MultipleNegativesRankingLoss(model)
)
print(f"loss {trainer.train().training_loss:.6f}")
embeddings = model.encode(anchors[:5])
print(f"embeddings {embeddings.shape} {embeddings.mean():.6f} {embeddings.std():.6f}")
print(f"similarity {model.similarity(embeddings, embeddings).mean().item():.6f}")

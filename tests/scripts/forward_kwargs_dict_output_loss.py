"""The interface of a well-known library: model(**batch) returns an ordered mapping with .loss and .logits."""

# test: views=batch
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader


class ModelOutput(OrderedDict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ForSequenceClassification(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.classifier = nn.Embedding(12, 6), nn.Linear(6, 2)

    def forward(self, input_ids=None, attention_mask=None, labels=None, return_dict=True):
        mask = attention_mask.unsqueeze(-1).float()
        pooled = (self.embed(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.classifier(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return ModelOutput(loss=loss, logits=logits)


torch.manual_seed(234)
samples = [
    {"input_ids": torch.randint(0, 12, (6,)), "attention_mask": (torch.arange(6) < 2 + i % 5).long(), "labels": i % 2}
    for i in range(27)
]
model = ForSequenceClassification()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(3):
    right = 0
    for batch in DataLoader(samples, batch_size=8, shuffle=True):
        outputs = model(**batch)
        optimizer.zero_grad()
        outputs.loss.backward()
        optimizer.step()
        right += (outputs["logits"].argmax(-1) == batch["labels"]).sum().item()
    print(f"{type(outputs).__name__} loss {outputs.loss.item():.8f} accuracy {right / 27:.6f}")

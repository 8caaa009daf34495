# framework: transformers
# program: plain loop, ViT image classifier with dropout, attention maps
import torch
import torch.nn.functional as F
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(11)
config = ViTConfig(
    image_size=16,
    patch_size=4,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    num_labels=5,
    attn_implementation="eager",
)
model = ViTForImageClassification(config)
images = torch.randn(50, 3, 16, 16)
labels = torch.randint(0, 5, (50,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=12, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    running, correct = 0.0, 0
    for pixel_values, y in loader:
        optimizer.zero_grad()
        logits = model(pixel_values=pixel_values).logits
        loss = F.cross_entropy(logits, y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(y)
        correct += (logits.argmax(1) == y).sum().item()
    print(f"epoch {epoch + 1}: loss {running / 50:.6f} acc {correct / 50:.4f}")
model.eval()
with torch.no_grad():
    out = model(images[:7], output_attentions=True)
print(f"eval {F.cross_entropy(out.logits, labels[:7]).item():.6f} attention {out.attentions[-1].std().item():.6f}")

# framework: transformers
# program: Mixtral with its router's load-balancing loss, whose logits hooks collect beside the layers
import torch
from transformers import MixtralConfig, MixtralForCausalLM

torch.manual_seed(0)
config = MixtralConfig(
    vocab_size=60,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=32,
    output_router_logits=True,
)
model = MixtralForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    ids = torch.randint(0, 60, (6, 12))
    out = model(input_ids=ids, labels=ids)
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
    print(
        step, f"{out.loss.item():.5f} {out.aux_loss.item():.5f}", [tuple(logits.shape) for logits in out.router_logits]
    )

# framework: peft
# program: LoRA on GPT-2 through transformers' `Trainer`, adapter saved and loaded again
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(1)
base = GPT2LMHeadModel(GPT2Config(vocab_size=90, n_positions=32, n_embd=32, n_layer=2, n_head=2))
state = {k: v.clone() for k, v in base.state_dict().items()}
lora = LoraConfig(
    task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=16, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True
)
model = get_peft_model(base, lora)
model.print_trainable_parameters()
rows = torch.randint(0, 90, (40, 16))
dataset = [{"input_ids": r, "labels": r} for r in rows]
args = TrainingArguments(
    "lora",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    logging_steps=2,
    save_strategy="no",
    disable_tqdm=True,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(model=model, args=args, train_dataset=dataset)
print(f"{trainer.train().training_loss:.6f}")
model.save_pretrained("adapter")

again = GPT2LMHeadModel(base.config)
again.load_state_dict(state, strict=False)
again = PeftModel.from_pretrained(again, "adapter")
merged = again.merge_and_unload().eval()
model.eval()
with torch.no_grad():
    one, two = model(rows[:6]).logits, merged(rows[:6]).logits
print(f"logits {one.mean().item():.6f} {two.mean().item():.6f}")

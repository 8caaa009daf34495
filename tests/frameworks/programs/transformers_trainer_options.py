# framework: transformers
# program: `Trainer` with gradient checkpointing, custom loss, callbacks, `IterableDataset`, NEFTune; DistilBERT, LLaMA, OPT
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import torch
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(9)


class Print(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % 2 == 0:
            print(f"step {state.global_step} weight {sum(p.abs().sum() for p in model.parameters()).item():.3f}")


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        g = torch.Generator().manual_seed(4)
        while True:
            ids = torch.randint(3, 60, (12,), generator=g)
            yield {"input_ids": ids, "labels": ids}


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))(
            outputs.logits.view(-1, 3), labels.view(-1)
        )
        return (loss, outputs) if return_outputs else loss


def args(**more):
    return TrainingArguments(
        "out",
        max_steps=6,
        per_device_train_batch_size=6,
        learning_rate=1e-3,
        logging_steps=2,
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
        **more,
    )


rows = [{"input_ids": torch.randint(3, 60, (10,)), "labels": torch.randint(0, 3, (10,))} for _ in range(30)]
model = DistilBertForTokenClassification(
    DistilBertConfig(vocab_size=60, dim=32, n_layers=2, n_heads=4, hidden_dim=64, num_labels=3)
)
print(
    f"{Weighted(model=model, args=args(), train_dataset=rows, eval_dataset=rows[:9], callbacks=[Print()]).train().training_loss:.6f}"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=32,
    )
)
trainer = Trainer(model=model, args=args(gradient_checkpointing=True), train_dataset=Stream())
print(f"{trainer.train().training_loss:.6f}")
print(model.generate(torch.randint(3, 60, (3, 4)), max_new_tokens=5, do_sample=False).tolist())
model = OPTForCausalLM(
    OPTConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=48,
        max_position_embeddings=32,
        word_embed_proj_dim=32,
        layerdrop=0.2,
    )
)
print(
    f"{Trainer(model=model, args=args(neftune_noise_alpha=5, lr_scheduler_type='constant'), train_dataset=Stream()).train().training_loss:.6f}"
)

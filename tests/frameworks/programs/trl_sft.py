# framework: trl
# mask: _(runtime|per_second)': '[\d.]+
# program: `SFTTrainer` on tokens with packing off, completion-only labels, a tiny Llama
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = "the a cat dog sat ran on mat rug and then it was big small red".split()
vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *words])}
raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
g = torch.Generator().manual_seed(1)


def text(n):
    return " ".join(words[i] for i in torch.randint(0, len(words), (n,), generator=g).tolist())


rows = [{"prompt": text(4), "completion": " " + text(3 + i % 5)} for i in range(32)]
config = LlamaConfig(
    vocab_size=len(vocab),
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=1,
)
with tempfile.TemporaryDirectory() as folder:
    args = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        max_steps=5,
        logging_steps=1,
        report_to=[],
        bf16=False,
        learning_rate=5e-3,
        lr_scheduler_type="linear",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        gradient_checkpointing=False,
    )
    trainer = SFTTrainer(
        LlamaForCausalLM(config), args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    for it in trainer.state.log_history:
        print(
            {
                k: round(v, 4)
                for k, v in it.items()
                if k in ("loss", "grad_norm", "mean_token_accuracy", "entropy", "num_tokens")
            }
        )

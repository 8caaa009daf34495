# framework: trl
# mask: _(runtime|per_second)': '[\d.]+
# program: `DPOTrainer` with a reference model, a tiny GPT-2 with dropout 0
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

torch.manual_seed(0)
words = "good bad nice poor fine well ill hot cold warm".split()
vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *words])}
raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
g = torch.Generator().manual_seed(1)


def text(n):
    return " ".join(words[i] for i in torch.randint(0, len(words), (n,), generator=g).tolist())


rows = [{"prompt": text(3), "chosen": " " + text(3 + i % 3), "rejected": " " + text(2 + i % 4)} for i in range(24)]
config = GPT2Config(
    vocab_size=len(vocab),
    n_embd=16,
    n_layer=2,
    n_head=2,
    n_positions=64,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    bos_token_id=1,
    eos_token_id=1,
    pad_token_id=0,
)
model, reference = GPT2LMHeadModel(config), GPT2LMHeadModel(config)
reference.load_state_dict(model.state_dict())
with tempfile.TemporaryDirectory() as folder:
    args = DPOConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        max_steps=4,
        logging_steps=1,
        report_to=[],
        bf16=False,
        beta=0.2,
        learning_rate=5e-3,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        gradient_checkpointing=False,
    )
    trainer = DPOTrainer(model, reference, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    for it in trainer.state.log_history:
        print({k: round(v, 4) for k, v in it.items() if k in ("loss", "grad_norm", "rewards/margins", "logps/chosen")})

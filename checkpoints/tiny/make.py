"""Makes the tiny target in this directory: tokenizer, weights, held-out text and measured figures.

    spectrain generate recipes/smollm2-eagle3.toml --out runs/base
    python checkpoints/tiny/make.py --answers runs/base/answers.parquet --epochs 14

Needs torch, transformers 5, tokenizers and pyarrow. All draws are seeded; other versions or machines round differently,
so a new run gives a model of the same quality, not the same bytes.

The text is the reference target's: its stored answers are decoded and encoded again with a small vocabulary. Prompts
are split once, by hash, into training and held-out ones, and none of the evaluation prompts may be among them.
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, LlamaConfig, LlamaForCausalLM

SEED = 17
MAX_ANSWER_TOKENS = 300_000  # counted with the reference's tokenizer
HELD_OUT_SHARE = 0.08  # of the prompts
HELD_OUT_BYTES = 58_000

VOCABULARY = 2048
END_OF_TEXT, START, END = SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MODEL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.05,
    "tie_word_embeddings": True,
    "bos_token_id": SPECIAL.index(START),
    "eos_token_id": SPECIAL.index(END),
    "pad_token_id": SPECIAL.index(END_OF_TEXT),
}
EPOCHS = 14
BATCH_TOKENS = 1536
LEARNING_RATE = 3e-3
MUON_FACTOR = 2.0  # on the learning rate of the blocks' matrices
WARMUP = 0.05
WEIGHT_DECAY = 0.1
DROPOUT = 0.1
PROMPT_WEIGHT = 0.1  # of a prompt's token in the loss; an answer's token weighs 1


@dataclass(frozen=True)
class Conversation:
    """A prompt and what the reference answered."""

    prompt_id: str
    messages: tuple  # of (role, content)
    answer: str
    finished: bool  # the reference ended its turn; otherwise the answer was cut at the length cap
    tokens: int  # of the answer, in the reference's tokens


@dataclass(frozen=True)
class Row:
    """A conversation in the tiny vocabulary."""

    ids: list
    answer_from: int


# Text


def rendered(messages):
    """A prompt up to the answer's first character; must be what TEMPLATE renders (checked in `check_directory`)."""
    turns = "".join(f"{START}{role}\n{content}{END}\n" for role, content in messages)
    return f"{turns}{START}assistant\n"


def prompt_hash(messages):
    return hashlib.sha256(rendered(messages).encode()).hexdigest()


def read_prompts(path):
    """Messages by prompt id."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {row["id"]: tuple((m["role"], m["content"]) for m in row["messages"]) for row in rows}


def read_answers(paths, reference, prompts):
    """The distinct answers of all files, cut at MAX_ANSWER_TOKENS."""
    tokenizer = Tokenizer.from_file(str(reference / "tokenizer.json"))
    conversations, total = {}, 0
    for path in paths:
        for row in parquet.read_table(path).to_pylist():
            ids = row["answer_ids"]
            text = tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd")
            found = Conversation(
                row["prompt_id"], prompts[row["prompt_id"]], text, row["finish"] == "stop", len(ids)
            )
            if not text.strip() or found in conversations:
                continue
            if total + len(ids) > MAX_ANSWER_TOKENS:
                return list(conversations), total
            conversations[found] = None
            total += len(ids)
    return list(conversations), total


def split(conversations):
    """Training and held-out conversations; no prompt is in both."""
    hashes = sorted({prompt_hash(c.messages) for c in conversations})
    held = set(hashes[: round(len(hashes) * HELD_OUT_SHARE)])
    training = [c for c in conversations if prompt_hash(c.messages) not in held]
    held_out = [c for c in conversations if prompt_hash(c.messages) in held]
    return training, held_out


def held_out_lines(held_out):
    """The committed held-out text: whole answers only (so that the chat template renders them), in a seeded order."""
    candidates = [c for c in held_out if c.finished]
    random.Random(SEED).shuffle(candidates)
    lines, size = [], 0
    for c in candidates:
        messages = [{"role": role, "content": content} for role, content in (*c.messages, ("assistant", c.answer))]
        line = json.dumps({"id": c.prompt_id, "messages": messages}, ensure_ascii=False) + "\n"
        if size + len(line.encode()) <= HELD_OUT_BYTES:
            size += len(line.encode())
            lines.append((c, line))
    return lines


# Tokenizer


def train_tokenizer(conversations):
    """Byte-level BPE; digits stand alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    prompts = sorted({content for c in conversations for _, content in c.messages})
    tokenizer.train_from_iterator(prompts + [c.answer for c in conversations], trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def encode(tokenizer, conversation):
    """Prompt and answer are encoded apart, as at run time."""
    prompt = tokenizer.encode(rendered(conversation.messages)).ids
    answer = tokenizer.encode(conversation.answer + (END if conversation.finished else "")).ids
    return Row((prompt + answer)[: MODEL["max_position_embeddings"]], len(prompt))


# Training


def batches(rows, generator):
    """Rows of similar length together, in a new order each time."""
    order = sorted(rows, key=lambda row: len(row.ids) + generator.random() * 32)
    done, batch = [], []
    for row in order:
        if batch and (len(batch) + 1) * max(len(row.ids), *(len(r.ids) for r in batch)) > BATCH_TOKENS:
            done.append(batch)
            batch = []
        batch.append(row)
    done.append(batch)
    generator.shuffle(done)
    return done


def tensors(batch, prompt_weight):
    """Inputs, next tokens and their weights, padded on the right: causal attention needs no mask for that."""
    width = max(len(row.ids) for row in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    weights = torch.zeros(len(batch), width)
    for i, row in enumerate(batch):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        weights[i, : len(row.ids)] = 1.0
        weights[i, : row.answer_from] = prompt_weight
    return ids[:, :-1], ids[:, 1:], weights[:, 1:]


def summed_loss(model, batch, prompt_weight):
    """Weighted negative log-likelihood in nats, and the sum of the weights."""
    inputs, targets, weights = tensors(batch, prompt_weight)
    keep = weights.flatten() > 0
    hidden = model.model(inputs, use_cache=False).last_hidden_state.flatten(0, 1)[keep]
    loss = F.cross_entropy(model.lm_head(hidden), targets.flatten()[keep], reduction="none")
    weights = weights.flatten()[keep]
    return (loss * weights).sum(), weights.sum()


@torch.no_grad()
def cross_entropy(model, rows):
    """Bits per answer token."""
    model.eval()
    sums = [summed_loss(model, [row], 0.0) for row in rows]
    return sum(s.item() for s, _ in sums) / sum(n.item() for _, n in sums) / math.log(2)


def add_dropout(model):
    """Dropout on the embeddings and on what each block adds to the residual stream."""
    drop = lambda module, _, output: F.dropout(output, DROPOUT, module.training)
    places = [model.model.embed_tokens]
    places += [p for layer in model.model.layers for p in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    return [place.register_forward_hook(drop) for place in places]


def optimizers_of(model):
    """Muon for the blocks' matrices, which makes the most of few tokens; AdamW for embeddings and norms."""
    blocks = [p for p in model.model.layers.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    muon = torch.optim.Muon(
        blocks, lr=MUON_FACTOR * LEARNING_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"
    )
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": [model.model.embed_tokens.weight]}]
    adamw = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY, fused=True)
    return [muon, adamw]


def train(training, held_out, epochs):
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters")
    hooks = add_dropout(model)
    optimizers = optimizers_of(model)
    generator = random.Random(SEED)
    plan = [batch for _ in range(epochs) for batch in [*batches(training, generator), None]]
    steps = len(plan) - epochs
    rate = lambda step: min((step + 1) / (WARMUP * steps), 0.5 + 0.5 * math.cos(math.pi * step / steps))
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    step, seen, started = 0, [0.0, 0.0], time.time()
    for batch in plan:
        if batch is None:  # an epoch's end
            bits = seen[0] / seen[1] / math.log(2)
            print(
                f"step {step}/{steps}: training {bits:.3f}, held-out {cross_entropy(model, held_out):.3f} bits/token, "
                f"{time.time() - started:.0f} s",
                flush=True,
            )
            seen = [0.0, 0.0]
            continue
        model.train()
        loss, weight = summed_loss(model, batch, PROMPT_WEIGHT)
        model.zero_grad()
        (loss / weight).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        seen = [seen[0] + loss.item(), seen[1] + weight.item()]
        step += 1
    for hook in hooks:
        hook.remove()
    return model.eval()


# Files


def write_directory(out, tokenizer, model):
    model.generation_config.do_sample = False
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MODEL["max_position_embeddings"],
        "bos_token": START,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def check_directory(out, held_out):
    """What `transformers` reads back is what was trained on; prints ids for a comparison with other readers."""
    tokenizer = AutoTokenizer.from_pretrained(out)
    for i, (conversation, line) in enumerate(held_out):
        messages = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, tokenize=False)
        assert prompt == rendered(conversation.messages)
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        if i == 0:
            print(f"ids of the first held-out conversation: {ids}")
    return tokenizer


# Measurements


def unigram_bits(training, held_out):
    """Cross-entropy of held-out answer tokens under the training answers' frequencies (one is added to each count)."""
    counts = Counter(id for row in training for id in row.ids[row.answer_from :])
    total = sum(counts.values()) + VOCABULARY
    tokens = [id for row in held_out for id in row.ids[row.answer_from :]]
    return -sum(math.log2((counts[id] + 1) / total) for id in tokens) / len(tokens)


@torch.no_grad()
def answers(model, prompts, temperature, limit, generator):
    """The model's answers as ids, and the entropies in bits of its distributions (T = 1) where each id stands."""
    width = max(len(prompt) for prompt in prompts)  # padded on the left
    inputs = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    ids, entropies, cache = [[] for _ in prompts], [[] for _ in prompts], DynamicCache()
    for _ in range(limit):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
        logits = model(inputs, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True).logits[:, -1]
        log_p = logits.log_softmax(-1)
        bits = -(log_p.exp() * log_p).sum(-1) / math.log(2)
        if temperature == 0.0:
            inputs = logits.argmax(-1, keepdim=True)
        else:
            inputs = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        mask = F.pad(mask, (0, 1), value=1)
        for row, id in enumerate(inputs[:, 0].tolist()):
            if not ended(ids[row]):
                ids[row].append(id)
                entropies[row].append(bits[row].item())
        if all(map(ended, ids)):
            break
    return ids, entropies


def ended(ids):
    return ids[-1:] == [MODEL["eos_token_id"]]


def distinct(answers, n):
    """Different n-grams per n-gram, over all answers together."""
    grams = [tuple(ids[i : i + n]) for ids in answers for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams)


def measure(out, tokenizer, training, held_out, eval_prompts):
    """Figures of the written model (bf16 weights, f32 arithmetic)."""
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(SEED)
    prompts = [tokenizer(rendered(messages), add_special_tokens=False)["input_ids"] for messages in eval_prompts]
    greedy, _ = answers(model, prompts, 0.0, 192, generator)
    sampled, entropies = answers(model, prompts, 1.0, 192, generator)
    for ids in greedy[:6] + sampled[:6]:
        print(f"--- {tokenizer.decode(ids)!r}")
    entropies = [bits for row in entropies for bits in row]
    share_ended = lambda answers: sum(map(ended, answers)) / len(answers)
    cross, unigram = cross_entropy(model, held_out), unigram_bits(training, held_out)
    reference = [row.ids[row.answer_from :][:96] for row in held_out[:20]]
    return {
        "held-out cross-entropy, bits/token": cross,
        "unigram entropy of the same tokens": unigram,
        "below unigram": unigram - cross,
        "entropy at T = 1 on its own samples": sum(entropies) / len(entropies),
        "distinct-4 of 20 greedy answers of 96 tokens": distinct([ids[:96] for ids in greedy[:20]], 4),
        "the same of 20 sampled answers": distinct([ids[:96] for ids in sampled[:20]], 4),
        "the same of the reference's text": distinct(reference, 4),
        "greedy answers that end within 192 tokens": share_ended(greedy),
        "sampled answers that end within 192 tokens": share_ended(sampled),
    }


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Makes the tiny target.")
    parser.add_argument("--answers", type=Path, nargs="+", required=True, help="answers.parquet of the reference")
    parser.add_argument("--reference", type=Path, default=Path("checkpoints/smollm2-135m-instruct"))
    parser.add_argument("--prompts", type=Path, default=Path("data/prompts.jsonl"))
    parser.add_argument("--eval-prompts", type=Path, default=Path("eval/heldout.jsonl"))
    parser.add_argument("--out", type=Path, default=here)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")  # matrix products in bf16, where the processor has them
    args.out.mkdir(parents=True, exist_ok=True)

    eval_prompts = list(read_prompts(args.eval_prompts).values())
    conversations, total = read_answers(args.answers, args.reference, read_prompts(args.prompts))
    training, held_out = split(conversations)
    hashes = sorted({prompt_hash(c.messages) for c in training})
    assert not set(hashes) & {prompt_hash(messages) for messages in eval_prompts}, "an evaluation prompt is trained on"
    lines = held_out_lines(held_out)
    print(
        f"{len(conversations)} answers of {total:,} tokens, {sum(c.finished for c in conversations)} whole; "
        f"{len(training)} for training from {len(hashes)} prompts; {len(lines)} of {len(held_out)} held out are kept"
    )
    (args.out / "prompts.sha256").write_text("".join(f"{h}\n" for h in hashes))
    (args.out / "heldout.jsonl").write_text("".join(line for _, line in lines), encoding="utf-8")

    tokenizer = train_tokenizer(training)
    training_rows = [encode(tokenizer, c) for c in training]
    held_out_rows = [encode(tokenizer, c) for c, _ in lines]
    print(
        f"tokens: {sum(len(r.ids) for r in training_rows):,} training, of these "
        f"{sum(len(r.ids) - r.answer_from for r in training_rows):,} of answers; "
        f"{sum(len(r.ids) - r.answer_from for r in held_out_rows):,} of held-out answers"
    )
    model = train(training_rows, held_out_rows, args.epochs)
    write_directory(args.out, tokenizer, model)
    loaded = check_directory(args.out, lines)
    torch.set_float32_matmul_precision("highest")
    for name, value in measure(args.out, loaded, training_rows, held_out_rows, eval_prompts).items():
        print(f"{name}: {value:.3f}")
    size = sum(f.stat().st_size for f in args.out.iterdir() if f.is_file())
    print(f"directory: {size:,} bytes")
    assert size <= 4_000_000


if __name__ == "__main__":
    main()

"""Witness 1: drafters of the `speculators` library here, and ours there.

Makes `speculators/`: two small drafters of that library's own classes, one random with its own head and embedding, one
trained for a few steps by its own loss and stored in bf16, and the logits that its forward gives at every unroll step,
for these and for two drafters that `tests/e2e/witness.rs` exports. The Rust test checks ours against those logits
without Python. The last agreement is kept in `speculators.json`. From the repository's root:

    pip install speculators==0.9.0
    python tests/witness/speculators.py
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

sys.path.pop(0)  # this file's own directory: its name is that of the library

import safetensors
import torch
import transformers
from safetensors.torch import load_file, save_file
from speculators import SpeculatorModel, SpeculatorModelConfig
from speculators.losses import resolve_loss_config
from speculators.models.eagle3.core import Eagle3DraftModel
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/witness/speculators"
TARGET = "tiny_gqa4_f16"
TARGET_DIR = ROOT / "crates/model/fixtures" / TARGET
TAPS = [1, 2, 4]
ROWS = 12
STEPS = 5
DRAFT_VOCAB = 60
BOUND = 1e-4  # of the range of the logits, in f32


def features(target, ids):
    """Taps [1, T, 3h] and the last hidden before the final norm [1, T, h] of one sequence."""
    caught = []
    hook = target.model.norm.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with torch.no_grad():
        out = target(ids, output_hidden_states=True, use_cache=False)
    hook.remove()
    hidden = list(out.hidden_states[:-1]) + [caught[0]]
    return torch.cat([hidden[tap] for tap in TAPS], dim=-1), caught[0]


def maps(vocab):
    """Every token that a fixed pattern keeps: t2d [V] and the offsets d2t [DRAFT_VOCAB]."""
    kept = sorted(range(vocab), key=lambda i: (-(i * 37 % vocab), i))[:DRAFT_VOCAB]
    kept = torch.tensor(sorted(kept))
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[kept] = True
    return t2d, kept - torch.arange(DRAFT_VOCAB)


def make(seed, norm_before_residual):
    """A drafter of theirs as their own training makes it, its random weights large enough to tell conventions apart."""
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(TARGET_DIR)
    t2d, d2t = maps(config.vocab_size)
    config.num_hidden_layers = 1
    model = Eagle3DraftModel.from_training_args(
        config, t2d, d2t, draft_vocab_size=DRAFT_VOCAB, norm_before_residual=norm_before_residual, ttt_steps=STEPS,
        target_layer_ids=TAPS, verifier_name_or_path=str(TARGET_DIR), draft_attn_impl="eager")
    model = model.float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name and "verifier" not in name:
                p.uniform_(0.5, 1.5)
            elif name.startswith(("fc", "layers")):
                p.normal_(std=p.shape[1] ** -0.5)
    return model


def train(model, target, steps=30):
    """A few steps of their own loss on random text with the target's own features."""
    torch.manual_seed(7)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, target.config.vocab_size, (1, 33))
        taps, last = features(target, ids)
        _, loss, _ = model(
            taps[:, :-1], ids[:, 1:], torch.zeros(1, 32, dtype=torch.long), torch.ones(1, 32, dtype=torch.bool),
            verifier_last_hidden_states=last[:, 1:], ttt_steps=3, loss_config=resolve_loss_config("kl_div", "eager"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"their training: loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    return losses


def forward(directory, taps, ids):
    """Their loader, their forward: logits [STEPS, T, DRAFT_VOCAB]."""
    config = SpeculatorModelConfig.from_pretrained(directory)
    config.transformer_layer_config._attn_implementation = "eager"  # flex attention wants whole blocks of rows
    model = SpeculatorModel.from_pretrained(directory, config=config, dtype=torch.float32).eval()
    assert model.dtype == torch.float32 and not any(p.isnan().any() for p in model.parameters())
    caught = []
    model.lm_head.register_forward_hook(lambda _, __, out: caught.append(out[0]))
    with torch.no_grad():
        model(taps, ids, torch.zeros_like(ids), ttt_steps=STEPS)
    return torch.stack(caught)


def store(model, name, dtype, work, taps, ids):
    """Saves a drafter of theirs, without this machine's path of its target; returns its logits."""
    model.to(dtype).save_pretrained(work / name)
    logits = forward(work / name, taps, ids)
    (OUT / name).mkdir()
    shutil.copyfile(work / name / "model.safetensors", OUT / name / "model.safetensors")
    config = (work / name / "config.json").read_text()
    (OUT / name / "config.json").write_text(config.replace(str(TARGET_DIR), TARGET))
    return logits


def rust(work):
    """Has the Rust test write what it exports and computes."""
    command = ["cargo", "test", "--release", "--workspace", "--test", "e2e", "witness::"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "SPECTRAIN_WITNESS": str(work)})
    return done.returncode == 0


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    target = AutoModelForCausalLM.from_pretrained(TARGET_DIR, dtype=torch.float32).eval()
    torch.manual_seed(1)
    text = torch.randint(0, target.config.vocab_size, (1, ROWS + 1))
    taps, ids = features(target, text)[0][:, :-1], text[:, 1:]
    expected = {"taps": taps[0].contiguous(), "next": ids[0].contiguous()}
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        random = make(2, norm_before_residual=False)
        with torch.no_grad():
            random.lm_head.weight += 0.1 * torch.randn_like(random.lm_head.weight)
            random.embed_tokens.weight += 0.1 * torch.randn_like(random.embed_tokens.weight)
        expected["random"] = store(random, "random", torch.float32, work, taps, ids)
        trained = make(3, norm_before_residual=True)
        losses = train(trained, target)
        expected["trained"] = store(trained, "trained", torch.bfloat16, work, taps, ids)
        save_file(expected, OUT / "expected.safetensors")
        rust(work)  # fails as long as the logits of ours are not there
        for name in ["ours-0", "ours-1"]:
            expected[name] = forward(work / name, taps, ids)
        save_file(expected, OUT / "expected.safetensors")
        passed = rust(work)
        found = load_file(work / "rust.safetensors")
    agreement = {}
    for name in ["random", "trained", "ours-0", "ours-1"]:
        off = (found[name].reshape(expected[name].shape) - expected[name]).abs()
        span = expected[name].max() - expected[name].min()
        agreement[name] = [float(f"{(step.max() / span).item():.2e}") for step in off]
    result = {
        "speculators": version("speculators"),
        "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
        "safetensors": safetensors.__version__,
        "target": TARGET,
        "rows": ROWS,
        "their_loss": {"first": round(losses[0], 3), "last": round(losses[-1], 3), "steps": len(losses)},
        "largest_difference_by_unroll_step_in_parts_of_the_logits_range": agreement,
        "bound": BOUND,
        "rust_test_passed": passed,
    }
    (OUT.parent / "speculators.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    good = passed and all(off <= BOUND for steps in agreement.values() for off in steps)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

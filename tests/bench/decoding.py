"""Plain decoding of one request by ours and by `transformers.generate` in turn: same weights and prompts, two threads, f32.

usage: decoding.py TARGET_DIR OUR_BINARY [ROUNDS]
Needs torch and transformers. Build ours with `cargo build --release --workspace --examples`; it is
target/release/examples/plain_decoding. Prints each round and the median ratio; the texts are compared.
"""
import json, statistics, subprocess, sys, time

import torch
from transformers import AutoModelForCausalLM

TOKENS = 64


def main():
    target, binary = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    ours = subprocess.Popen([binary, target, str(TOKENS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def theirs(ids):
        start = time.perf_counter()
        with torch.no_grad():
            out = model.generate(torch.tensor([ids]), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
                                 pad_token_id=2)
        return time.perf_counter() - start, out[0, len(ids):].tolist()

    def mine(ids):
        print(*ids, file=ours.stdin, flush=True)
        answer = json.loads(ours.stdout.readline())
        return answer["seconds"], answer["ids"]

    generator = torch.Generator().manual_seed(0)
    ratios = []
    for i in range(rounds + 1):
        ids = torch.randint(0, model.config.vocab_size, (32,), generator=generator).tolist()
        (a, own), (b, other) = (mine(ids), theirs(ids)) if i % 2 else (theirs(ids), mine(ids))[::-1]
        if i == 0:
            continue  # the first use of everything
        # A token that ends texts is barred in theirs by the least length; texts are compared up to it.
        same = next((k for k in range(TOKENS) if own[k] != other[k]), TOKENS)
        ratios.append(b / a)
        print(f"{TOKENS / a:6.1f} and {TOKENS / b:6.1f} tokens/s: {b / a:.2f}x, {same} tokens alike", flush=True)
    print(f"median {statistics.median(ratios):.2f}x")


main()

"""Training steps of ours and of `speculators` (0.9.0, EAGLE-3) in turn: same sizes, same tensors frozen, two threads, f32.

usage: training_step.py TARGET_DIR OUR_BINARY [ROUNDS]
Needs torch, transformers and speculators. Prints one line a setting with the medians and the ratio; the peer's peak
memory is that of a process of its own.
"""
import json, resource, statistics, subprocess, sys, time


def peer(target, tokens, words, steps):
    """A function that takes one step and returns its seconds."""
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import AutoConfig

    torch.set_num_threads(2)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    chosen = torch.arange(config.vocab_size) < words
    model = Eagle3DraftModel.from_training_args(
        config, t2d=chosen, d2t=torch.zeros(words, dtype=torch.long), draft_vocab_size=words, norm_before_residual=True,
        ttt_steps=steps, verifier_name_or_path=target, draft_attn_impl="eager", target_layer_ids=[2, 15, 27],
    ).float().train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-4)
    h = config.hidden_size
    batch = dict(
        hidden_states=torch.randn(1, tokens, 3 * h), verifier_last_hidden_states=torch.randn(1, tokens, h),
        input_ids=torch.randint(0, words, (1, tokens)), document_ids=torch.zeros(1, tokens, dtype=torch.long),
        loss_mask=torch.ones(1, tokens, dtype=torch.bool), ttt_steps=steps,
        loss_config=resolve_loss_config("kl_div", "eager"),
    )

    def step():
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        model(**batch)[1].backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        return time.perf_counter() - start

    step()
    return step


def ours(binary, *arguments):
    return json.loads(subprocess.run([binary, *map(str, arguments)], check=True, capture_output=True, text=True).stdout)


def peak_of_peer(target, tokens, words, steps):
    run = subprocess.run([sys.executable, __file__, "--peak", target, str(tokens), str(words), str(steps)],
                         check=True, capture_output=True, text=True)
    return float(run.stdout.split()[-1])


def main():
    if sys.argv[1] == "--peak":
        take = peer(sys.argv[2], *map(int, sys.argv[3:6]))
        take()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    target, binary = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    for tokens, words, steps in [(512, 8192, 3), (512, 49152, 7)]:
        take = peer(target, tokens, words, steps)
        theirs, found = [], []
        for _ in range(rounds):
            theirs.append(take())
            found.append(ours(binary, tokens, words, steps))
        theirs = statistics.median(theirs) * 1e3
        of = lambda key: statistics.median(f[key] for f in found)
        print(f"{tokens} tokens, {words} words, {steps} steps: ours {of('milliseconds'):.0f} ms, theirs {theirs:.0f} ms, "
              f"{theirs / of('milliseconds'):.2f}x; {of('of_ceiling'):.2f} of the ceiling at {of('products_gflops'):.0f} "
              f"GFLOP/s; memory {of('peak_mib'):.0f} of {peak_of_peer(target, tokens, words, steps):.0f} MiB", flush=True)
    short, long = [], []
    for _ in range(rounds):
        short.append(ours(binary, 512, 8192, 3, 512)["tokens_per_second"])
        long.append(ours(binary, 4096, 8192, 3, 512)["tokens_per_second"])
    short, long = statistics.median(short), statistics.median(long)
    print(f"packed documents of 512: {short:.0f} tokens/s at 512, {long:.0f} at 4,096, {long / short:.2f}x")


main()

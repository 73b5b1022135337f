"""Losses compared on one cache: `python3 eval/losses.py [smollm2|tiny]`, from the directory of the project.

Every row trains on the same answers, sampled at temperature 1, for the same number of epochs; rows "after kl" go on from
a KL run of all but one. Checkpoints are ranked without decoding on answers to other prompts, by paired bootstrap
against the baseline, KL; the best and the baseline are then measured in the verifier. Finished parts are kept: run it
again after a stop. SPECTRAIN names the binary. Writes eval/losses-TARGET.md.
"""
import json, os, pathlib, subprocess, sys

BINARY = os.environ.get("SPECTRAIN", "target/release/spectrain")
WHICH = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
SMOL = WHICH == "smollm2"
RECIPE = "recipes/smollm2-eagle3.toml" if SMOL else "recipes/quickstart.toml"
SEEDS = [17] if SMOL else [1, 2, 3]
# Of 350 steps each on SmolLM2: 200 to 300 s a row on two cores.
EPOCHS, FIRST = (3, 2)
KINDS = ["kl", "lk", "lk-lambda", "exact-length"]
AFTER = ["e2e-tv", "exact-length"]
LENGTH = 5 if SMOL else 4
SECONDS = {}


def spectrain(*arguments, log=None):
    print("$", *arguments, flush=True)
    done = subprocess.run([BINARY, *map(str, arguments)], stderr=subprocess.PIPE if log else None, text=True)
    if log:
        log.write_text(done.stderr)
    if done.returncode:
        sys.exit(f"{done.stderr or ''}\nexit code {done.returncode}")


def sets(**values):
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={json.dumps(value)}")]


def answers(name, **values):
    """A store of the target's own text at temperature 1."""
    chosen = sets(name=name, data__greedy_share=0.0, **values)
    if not pathlib.Path(f"runs/{name}/store/meta.json").exists():
        spectrain("generate", RECIPE, *chosen)
        spectrain("capture", RECIPE, *chosen)
    return f"runs/{name}"


def trained(name, kind, cache, epochs, seed, start=None):
    """Directory of the best checkpoint."""
    run = pathlib.Path(f"runs/{name}")
    log = pathlib.Path(f"runs/{name}.log")
    if not (run / "seconds.json").exists():
        # The measurement at the end is another part's: short answers here.
        chosen = sets(name=name, seed=seed, data__answers=f"{cache}/answers.parquet", store__dir=f"{cache}/store",
                      loss__kind=kind, train__epochs=epochs, eval__limit=12, eval__max_new_tokens=24,
                      eval__temperatures=[1.0], eval__curve=[], eval__length=LENGTH)
        spectrain("fit", RECIPE, *chosen, *(sets(train__start=start) if start else []), log=log)
    SECONDS[f"{run}/best"] = json.loads((run / "seconds.json").read_text())["train"]
    return f"{run}/best"


def measured(checkpoint):
    """τ at temperature 1 under the token rule, with its interval."""
    path = pathlib.Path(checkpoint).parent / "verified.json"
    if not path.exists():
        spectrain("eval", checkpoint, "--prompts", "eval/heldout.jsonl", "--limit", 56, "--max-new-tokens", 96,
                  "--lengths", LENGTH,
                  "--temperature", 1, "--json", path)
    row = next(r for r in json.loads(path.read_text())["rows"] if r["length"] == LENGTH and r["task"] is None)
    return row


def main():
    cache = answers(f"losses-{WHICH}", **({"seed": 29} if SMOL else {}))
    held = answers(f"losses-{WHICH}-heldout", data__prompts="eval/heldout.jsonl", data__answer_tokens=20_000, seed=31)
    rows = {}
    for seed in SEEDS:
        for kind in KINDS:
            rows[kind, seed] = trained(f"losses-{WHICH}-{kind}-{seed}", kind, cache, EPOCHS, seed)
        base = trained(f"losses-{WHICH}-kl{FIRST}-{seed}", "kl", cache, FIRST, seed)
        for kind in AFTER:
            name = f"losses-{WHICH}-kl-then-{kind}-{seed}"
            rows[f"{kind} after kl", seed] = trained(name, kind, cache, EPOCHS - FIRST, seed, base)
    report(rows, held)


def offline(first, second, held, path):
    """Estimate of the second checkpoint, and its difference to the first."""
    if not path.exists():
        spectrain("eval", first, second, "--offline", "--store", f"{held}/store", "--temperature", 1, "--lengths", LENGTH,
                  "--json", path)
    found = json.loads(path.read_text())
    estimate = next(e for e in found["estimates"] if e["checkpoint"] == second)["lengths"][0]
    # The better one stands first.
    d = found["differences"][0]
    sign = 1 if d["first"] == second else -1
    ends = sorted(sign * d["difference"][end] for end in ("low", "high"))
    return estimate, {"estimate": sign * d["difference"]["estimate"], "low": ends[0], "high": ends[1]}


def report(rows, held):
    lines = [f"# Losses on one cache, {WHICH}", "",
             f"Expected tokens per target call at temperature 1, chains of {LENGTH}, offline on 20,000 tokens of answers to "
             "held-out prompts; differences by paired bootstrap over answers.", "",
             "| loss | seed | training, s | offline [95 %] | minus KL [95 %] |", "|---|---|---|---|---|"]
    best = {}
    for (kind, seed), checkpoint in rows.items():
        base = rows["kl", seed]
        other = checkpoint if kind != "kl" else rows["lk", seed]
        pair = pathlib.Path(f"runs/losses-{WHICH}-{seed}-{pathlib.Path(other).parent.name}.json")
        estimate, difference = offline(base, other, held, pair)
        if kind == "kl":
            found = json.loads(pair.read_text())["estimates"]
            estimate = next(e for e in found if e["checkpoint"] == base)["lengths"][0]
        told = "" if kind == "kl" else interval(difference)
        seconds = SECONDS[checkpoint]
        lines.append(f"| {kind} | {seed} | {seconds:.0f} | {interval(estimate['tokens_per_target_call'])} | {told} |")
        best[kind] = best.get(kind, 0.0) + estimate["tokens_per_target_call"]["estimate"]
    first = max(best, key=best.get)
    lines += ["", "In the verifier, token rule, temperature 1, held-out prompts:", "",
              "| loss | seed | tokens per target call [95 %] |", "|---|---|---|"]
    for kind in dict.fromkeys(["kl", first if first != "kl" else sorted(best, key=best.get)[-2]]):
        for seed in SEEDS:
            row = measured(rows[kind, seed])["interval"]
            lines.append(f"| {kind} | {seed} | {interval(row)} |")
    pathlib.Path(f"eval/losses-{WHICH}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def interval(x):
    return f"{x['estimate']:.3f} [{x['low']:.3f}, {x['high']:.3f}]"


main()

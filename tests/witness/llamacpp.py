#!/usr/bin/env python3
"""llama.cpp as a witness: does it accept the share of an exported drafter's tokens that spectrain's verifier measures?

The same checkpoint drafts for the same target, greedily, once in `spectrain eval` and once in llama.cpp's server, which
shares no code with us. Steps, each kept in the work directory and not repeated:

  build    llama-server from the sources in the sdist of llama-cpp-python, without network access
  convert  target and `spectrain export CHECKPOINT --format llamacpp` to GGUF, in f32
  ours     `spectrain generate` for prompts and answers as token ids, `spectrain eval` for the accepted drafts
  serve    llama-server with the drafter, for every draft length: the prompts as token ids
  compare  texts, accepted over drafted tokens, and the share accepted at every position of the draft

The server logs every draft and how much of it was accepted. Rounds are trimmed as ours are, at a stop token and at the
longest answer: the server is asked for longer ones, since it shortens drafts towards the end of an answer, and a stop
token that was drafted counts as accepted, which it does there only in the draft's last place. The exit code is 0 if
everything agrees, 1 if not. Python needs torch, transformers, sentencepiece and pyarrow; cmake, ninja and a C++
compiler build the server.
"""

import argparse
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

SDIST = "llama-cpp-python==0.3.36"
SOURCES = "vendor/llama.cpp/"
# Nothing that asks the network, nothing that llama-server does without.
CMAKE = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
]
# Both models and both caches in f32, one request at a time, no prompt reused, as many drafts as asked for.
SERVE = [
    "--offline", "--no-ui", "--no-warmup", "--metrics", "--parallel", "1", "--fit", "off", "--cache-ram", "0",
    "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32", "--spec-draft-type-k", "f32",
    "--spec-draft-type-v", "f32", "--spec-type", "draft-eagle3", "--spec-draft-n-min", "0", "--spec-draft-p-min", "0",
    "--no-spec-draft-backend-sampling", "--verbosity", "5",
]
GREEDY = {"temperature": 0, "top_k": 1, "samplers": ["top_k"], "cache_prompt": False, "return_tokens": True}
# Of the server's log: the best candidate for a position of a draft, and what became of the draft.
ROUND = re.compile(
    r"draft candidate +0, pos +(\d+): +(\d+) |task (\d+) \| accepted +(\d+)/ *(\d+) draft tokens$", re.MULTILINE
)
POSITION = re.compile(r'^llamacpp:spec_decode_num_accepted_tokens_per_pos_total\{position="(\d+)"\} (\d+)', re.M)
OVERALL_BOUND = 0.05  # relative difference of accepted over drafted tokens
POSITION_BOUND = 2.0  # difference of a position's rate over the standard error of that difference
FEWEST_DRAFTED = 2000  # a draft length with fewer drafted tokens decides nothing


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("checkpoint", type=Path, help="the drafter's checkpoint directory, such as runs/smollm2-eagle3/best")
    add("--target", type=Path, default=Path("checkpoints/smollm2-135m-instruct"), help="default %(default)s")
    add("--prompts", type=Path, default=Path("eval/heldout.jsonl"), help="default %(default)s")
    add("--limit", type=int, help="prompts taken, from the start of the file [default: all]")
    add("--even", action="store_true", help="length K takes 2/(K+1) of these prompts: all draft about as many tokens")
    add("--spectrain", type=Path, default=Path("target/release/spectrain"), help="default %(default)s")
    add("--sdist", type=Path, help=f"archive or unpacked directory of {SDIST} [default: pip downloads it]")
    add("--server", type=Path, help="a llama-server built from the same sources, instead of building one")
    add("--work", type=Path, default=Path("runs/witness-llamacpp"), help="kept between runs; default %(default)s")
    add("--length", type=int, action="append", dest="lengths", help="draft length; may be repeated [default: 1, 3, 5]")
    add("--max-new-tokens", type=int, default=128, help="longest answer; default %(default)s")
    add("--batch", type=int, default=1, help="requests at once in `spectrain eval`; default %(default)s")
    add("--jobs", type=int, default=os.cpu_count(), help="processes of the build; default %(default)s")
    add("--threads", type=int, default=os.cpu_count(), help="threads of the server; default %(default)s")
    add("--json", type=Path, help="write the result here, such as tests/witness/llamacpp.json")
    args = parser.parse_args()
    args.lengths = args.lengths or [1, 3, 5]
    for name in ("checkpoint", "target", "prompts", "spectrain", "work", "sdist", "server"):
        path = getattr(args, name)
        setattr(args, name, path and path.resolve())
    return args


def main():
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    sources = unpack(args)
    server = args.server or build(args, sources)
    models = convert(args, sources)
    ours = measure_ours(args)
    theirs = {length: measure_theirs(args, server, models, length, ours) for length in args.lengths}
    result = compare(args, sources, ours, theirs)
    on_one_line = lambda numbers: "[" + " ".join(numbers[1].split()) + "]"
    text = re.sub(r"\[([-\d.,\s]+)\]", on_one_line, json.dumps(result, indent=1)) + "\n"
    if args.json:
        args.json.write_text(text)
    print(text, end="")
    return 0 if result["agrees"] else 1


# Building and converting


def run(command, **more):
    print("+", *command, file=sys.stderr, flush=True)
    subprocess.run([str(part) for part in command], check=True, stdout=sys.stderr, **more)


def done(path, make):
    """`path`, made by `make(partial)` unless it is there: what a stopped run leaves is not taken for a result."""
    if not path.exists():
        partial = path.with_name(path.name + ".partial")
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
        make(partial)
        partial.rename(path)
    return path


def unpack(args):
    """The directory of llama.cpp's sources."""
    if args.sdist and args.sdist.is_dir():
        return args.sdist / SOURCES

    def extract(partial):
        archive = args.sdist or download(args.work)
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _, _, inside = member.name.partition("/")
                if inside.startswith(SOURCES):
                    member.name = inside.removeprefix(SOURCES)
                    tar.extract(member, partial, filter="data")

    return done(args.work / "llama.cpp", extract)


def download(work):
    package, _, _ = SDIST.partition("==")
    run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package, "--dest", work, SDIST])
    return next(work.glob("llama_cpp_python-*.tar.gz"))


def build(args, sources):
    directory = args.work / "build"
    server = directory / "bin" / "llama-server"
    if not server.exists():
        run(["cmake", "-S", sources, "-B", directory, "-G", "Ninja", *CMAKE])
        run(["ninja", "-C", directory, f"-j{args.jobs}", "llama-server"])
    return server


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def checkpoint_hash(args):
    return sha256(args.checkpoint / "drafter.safetensors")


def kept(args, *what):
    """The directory of everything that comes of these prompts and of `what`."""
    asked = [sha256(args.prompts), args.limit, args.max_new_tokens, *what]
    directory = args.work / hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]
    directory.mkdir(exist_ok=True)
    return directory


def of_checkpoint(args):
    return kept(args, checkpoint_hash(args))


def convert(args, sources):
    """Target and drafter as GGUF files in f32."""
    script = sources / "convert_hf_to_gguf.py"
    outside = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

    def gguf(directory, out, *more):
        run([sys.executable, script, directory, "--outtype", "f32", "--outfile", out, *more], env=outside)

    home = of_checkpoint(args)
    export = [args.spectrain, "export", args.checkpoint, "--target", args.target, "--format", "llamacpp", "--out"]
    exported = done(home / "drafter", lambda out: run([*export, out]))
    target = done(args.work / "target.gguf", lambda out: gguf(args.target, out))
    drafter = done(home / "drafter.gguf", lambda out: gguf(exported, out, "--target-model-dir", args.target))
    return target, drafter


# Our side


def taken(args, length, count):
    """How many of `count` prompts a draft length takes."""
    return math.ceil(2 * count / (length + 1)) if args.even else count


def measure_ours(args):
    """Prompt and answer ids, and the evaluations with every prompt as a task of its own, by draft length."""
    home = of_checkpoint(args)
    prompts = [json.loads(line) for line in args.prompts.read_text().splitlines() if line.strip()][: args.limit]
    for prompt in prompts:
        prompt["task"] = prompt["id"]
    answers = generate(args, write_prompts(args, prompts), len(prompts))
    evaluations = {}
    for length in args.lengths:
        count = taken(args, length, len(prompts))
        asked = write_prompts(args, prompts[:count])
        command = [args.spectrain, "eval", args.checkpoint, "--target", args.target, "--prompts", asked]
        command += ["--temperature", "0", "--batch", args.batch, "--limit", count, "--length", length]
        command += ["--max-new-tokens", args.max_new_tokens, "--json"]
        path = done(home / f"ours-{length}-of-{count}-by-{args.batch}.json", lambda out: run([*command, out]))
        rows = {row["task"]: row for row in json.loads(path.read_text())["rows"] if row["length"] == length}
        evaluations[length] = rows.pop(None) | {"tasks": rows}
    return {"prompts": prompts, "answers": answers, "evaluations": evaluations}


def write_prompts(args, prompts):
    """A file of exactly these prompts: which ones a limit leaves depends on their tasks."""
    path = kept(args) / f"prompts-{len(prompts)}.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


def generate(args, asked, count):
    """One greedy answer a prompt, as rows with `prompt_ids` and `answer_ids`, in the order of the prompts."""
    import pyarrow.parquet

    recipe = asked.with_name("answers.toml")
    # As many requests at once as there are prompts, and enough with the first token: one answer each.
    recipe.write_text(
        f'name = "answers"\n[target]\npath = {json.dumps(str(args.target))}\n'
        f"[data]\nprompts = {json.dumps(str(asked))}\n"
        f"greedy_share = 1.0\nanswer_tokens = 1\nbatch = {count}\n"
        f"max_new_tokens = {args.max_new_tokens}\n"
    )
    out = done(asked.with_name("answers"), lambda out: run([args.spectrain, "generate", recipe, "--out", out]))
    rows = pyarrow.parquet.read_table(out / "answers.parquet").to_pylist()
    assert [row["prompt_id"] for row in rows] == [json.loads(line)["id"] for line in asked.read_text().splitlines()]
    return rows


# llama.cpp's side


class Server:
    """A running llama-server; its log is complete once it is closed."""

    def __init__(self, binary, target, drafter, length, threads, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [binary, "--model", target, "--spec-draft-model", drafter, *SERVE, "--ctx-size", 4096]
        command += ["--spec-draft-n-max", length, "--threads", threads, "--port", port, "--log-colors", "off"]
        print("+", *command, file=sys.stderr, flush=True)
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdout=out, stderr=out, env=os.environ | {"LLAMA_TRACE": "1"}
            )
        for _ in range(600):
            if self.process.poll() is not None:
                raise SystemExit(f"llama-server ended with {self.process.returncode}; see {log}")
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.2)
        self.close()
        raise SystemExit(f"llama-server did not get ready; see {log}")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=600) as reply:
            return reply.read().decode()

    def post(self, path, body):
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), header)
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def measure_theirs(args, binary, models, length, ours):
    """Answers and rounds of llama.cpp, and how many prompts it renders and encodes to our ids."""
    home = of_checkpoint(args)
    count = taken(args, length, len(ours["prompts"]))
    prompts, answers = ours["prompts"][:count], ours["answers"][:count]

    def ask(out):
        log = home / f"llama-server-{length}.log"
        server = Server(binary, *models, length, args.threads, log)
        try:
            same = [encode(server, prompt) == row["prompt_ids"] for prompt, row in zip(prompts, answers)]
            longest = args.max_new_tokens + 2 * length + 2
            replies = []
            for row in answers:
                reply = server.post("/completion", GREEDY | {"prompt": row["prompt_ids"], "n_predict": longest})
                timings = reply["timings"]
                drafted, accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
                replies.append({"ids": reply["tokens"], "drafted": drafted, "accepted": accepted})
            positions = POSITION.findall(server.get("/metrics"))
        finally:
            server.close()
        rounds(replies, log.read_text(errors="replace"))
        check_counters(replies, length, positions)
        out.write_text(json.dumps({"same_prompts": sum(same), "replies": replies}))

    return json.loads(done(home / f"theirs-{length}-of-{count}.json", ask).read_text())


def encode(server, prompt):
    """A prompt's ids by the chat template and the tokenizer in the target's GGUF."""
    text = server.post("/apply-template", {"messages": prompt["messages"]})["prompt"]
    return server.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]


def rounds(replies, log):
    """Adds `drafts` to every reply, a list of tokens a round, and checks the log against the reply's counters.

    The log has rounds by task, and tasks in the order of the replies; a reply without drafts has no rounds.
    """
    tasks, draft = {}, []
    for position, token, task, accepted, drafted in ROUND.findall(log):
        if token:
            draft = draft[: int(position)] + [int(token)]
        else:
            tasks.setdefault(int(task), []).append((int(accepted), draft[: int(drafted)]))
    logged = iter([tasks[task] for task in sorted(tasks)])
    for reply in replies:
        found = next(logged) if reply["drafted"] else []
        totals = (sum(accepted for accepted, _ in found), sum(len(draft) for _, draft in found))
        assert totals == (reply["accepted"], reply["drafted"]), f"the log has {totals}, the reply {reply}"
        reply["rounds"] = [accepted for accepted, _ in found]
        reply["drafts"] = [draft for _, draft in found]
    assert next(logged, None) is None, "the log has rounds of no reply"


def check_counters(replies, length, positions):
    """The server's own counters per position must be those of the log."""
    logged = [sum(accepted > j for reply in replies for accepted in reply["rounds"]) for j in range(length)]
    assert [int(count) for _, count in positions] == logged, f"counters {positions}, log {logged}"


# Comparison


def trimmed(reply, stops, longest, length):
    """Accepted tokens of each round as `spectrain eval` counts them, and the trimmed answer.

    The first token is the prompt's. A round commits its accepted drafts, those that are the answer's next tokens, and
    one token more, up to a stop token or the longest answer.
    """
    ids, accepted = reply["ids"], []
    written = 1
    for draft, counted in zip(reply["drafts"], reply["rounds"]):
        if written >= longest or ids[written - 1] in stops:
            break
        assert len(draft) == length, f"a round within the answer drafted {draft}, not {length} tokens"
        end = next((i + 1 for i in range(written, len(ids)) if ids[i] in stops), len(ids))
        room = ids[written : min(end, longest)]
        same = next((i for i, (a, b) in enumerate(zip(draft, room)) if a != b), min(len(draft), len(room)))
        stopped = same > 0 and room[same - 1] in stops and same < length
        assert counted == same - stopped or same == len(room) <= counted, f"{counted} accepted of {draft} before {room}"
        accepted.append(same)
        written += min(same + 1, len(room))
    return accepted, ids[:written]


def histogram(accepted, length):
    return [accepted.count(j) for j in range(length + 1)]


def rates(hist):
    """Rounds, accepted over drafted tokens, and the number of rounds that accepted at least 1, 2, … drafts."""
    count, length = sum(hist), len(hist) - 1
    reached = [sum(hist[j:]) for j in range(1, length + 1)]
    return count, sum(reached) / (count * length), reached


def standard_errors(ours, theirs):
    """By position, how far apart the two shares of rounds are, in standard errors of the difference of two samples.

    The rounds are mostly the same ones, which makes the true error smaller and a bound on this one generous.
    """
    (n, _, mine), (m, _, other) = ours, theirs
    pooled = [(a + b) / (n + m) for a, b in zip(mine, other)]
    errors = [math.sqrt(p * (1 - p) * (1 / n + 1 / m)) for p in pooled]
    return [round((b / m - a / n) / e, 3) if e else 0.0 for a, b, e in zip(mine, other, errors)]


def compare_texts(ours, evaluation, sides, length):
    """How many answers are the same ids, how many of these took the same rounds, and where the others part."""
    alike, same_rounds, parted = 0, 0, {}
    for row, (accepted, ids) in zip(ours["answers"], sides):
        task, mine = row["task"], row["answer_ids"]
        if ids == mine:
            alike += 1
            counted = evaluation["tasks"].get(task, {"accept_len_hist": histogram([], length)})
            same_rounds += counted["accept_len_hist"] == histogram(accepted, length)
        else:
            differ = (i for i, (a, b) in enumerate(zip(ids, mine)) if a != b)
            parted[task] = next(differ, min(len(ids), len(mine)))
    return {"alike": alike, "alike_with_same_rounds": same_rounds, "first_difference": parted}


def compare_length(length, ours, theirs, stops, longest):
    evaluation = ours["evaluations"][length]
    sides = [trimmed(reply, stops, longest, length) for reply in theirs["replies"]]
    hist = histogram([a for accepted, _ in sides for a in accepted], length)
    both = {"ours": rates(evaluation["accept_len_hist"]), "llama.cpp": rates(hist)}
    (our_rounds, our_rate, _), (their_rounds, their_rate, _) = both.values()
    relative = their_rate / our_rate - 1 if our_rate else math.inf
    errors = standard_errors(*both.values())
    close = abs(relative) <= OVERALL_BOUND and all(abs(error) <= POSITION_BOUND for error in errors)
    alike = theirs["same_prompts"] == len(sides)
    return {
        "length": length,
        "rounds": {side: count for side, (count, _, _) in both.items()},
        "drafted": {side: count * length for side, (count, _, _) in both.items()},
        "accepted": {side: sum(reached) for side, (_, _, reached) in both.items()},
        "accepted_over_drafted": {side: round(rate, 5) for side, (_, rate, _) in both.items()},
        "relative_difference": round(relative, 5),
        "rounds_by_accepted": {"ours": evaluation["accept_len_hist"], "llama.cpp": hist},
        "share_by_position": {s: [round(r / count, 5) for r in reached] for s, (count, _, reached) in both.items()},
        "standard_errors_by_position": errors,
        "prompts": len(sides),
        "prompts_encoded_alike": theirs["same_prompts"],
        "answers": compare_texts(ours, evaluation, sides, length),
        "agrees": close and alike and min(our_rounds, their_rounds) * length >= FEWEST_DRAFTED,
    }


def stop_ids(rows):
    """The tokens that ended our answers; a stop that ended none ends no equal text either."""
    return {row["answer_ids"][-1] for row in rows if row["finish"] == "stop"}


def compare(args, sources, ours, theirs):
    stops = stop_ids(ours["answers"])
    each = [compare_length(k, ours, theirs[k], stops, args.max_new_tokens) for k in args.lengths]
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    spectrain = subprocess.run([args.spectrain, "--version"], capture_output=True, text=True, check=True).stdout.split()
    return {
        "agrees": all(one["agrees"] for one in each),
        "bounds": {
            "accepted_over_drafted_relative": OVERALL_BOUND,
            "position_standard_errors": POSITION_BOUND,
            "fewest_drafted": FEWEST_DRAFTED,
        },
        "versions": {"spectrain": spectrain[-1], "llama.cpp": version(sources), "sdist": SDIST, **versions},
        "drafter_sha256": checkpoint_hash(args),
        "target": args.target.name,
        "max_new_tokens": args.max_new_tokens,
        "batch": {"ours": args.batch, "llama.cpp": 1},
        "lengths": each,
    }


def version(sources):
    """llama.cpp's version; the sdist has no commit."""
    text = (sources / "CMakeLists.txt").read_text()
    return ".".join(re.search(rf"set\(LLAMA_VERSION_{part} +(\d+)\)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


if __name__ == "__main__":
    sys.exit(main())

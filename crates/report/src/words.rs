//! What each word of the page means.

/// Words with their meanings.
pub const WORDS: [(&str, &str); 21] = [
    (
        "tokens per target call",
        "Tokens committed, divided by the target passes that verified drafts: one sum over all rounds by another, so \
         long answers weigh more. The token that the target adds behind the accepted ones counts; what a stop or the \
         length limit cut off does not, nor does the prompt's pass with its token. Plain decoding scores exactly 1.",
    ),
    (
        "95 % interval",
        "From resampling whole prompts, because rounds of one prompt resemble each other. It speaks for prompts like \
         these, not for others.",
    ),
    ("K", "Tokens drafted in a round. A round can commit one more."),
    ("accepted per call", "Drafted tokens that were accepted and kept, by target pass."),
    ("accepted / drafted", "Drafted tokens that were accepted, of all that were submitted. The rest was wasted work."),
    (
        "survival at j",
        "Share of all rounds that accepted at least j drafted tokens. The shares add up to accepted per call.",
    ),
    (
        "conditional acceptance at j",
        "Share of rounds that accepted token j among those that accepted the j - 1 before it. Other projects print \
         either of the two under the same name.",
    ),
    (
        "guarantee",
        "target-sampling: the text follows the target's own distribution exactly. greedy: it is the target's greedy \
         text. approximate: neither is promised, and a figure of such a rule is not lossless.",
    ),
    (
        "speedup",
        "Output tokens per second with drafts over those of plain decoding, which is separate code and answered the \
         same requests in the same process, by turns: a few questions each, so that both meet the same machine. The \
         interval is resampled by these stints.",
    ),
    ("draft", "Share of the speculative run spent in the drafter, its own cache included."),
    ("verify", "Share spent in target passes."),
    ("sample, state", "Shares spent on distributions and draws, and on committing, undoing and bookkeeping."),
    (
        "same text",
        "Prompts whose text equals plain decoding's, for rules that promise it. The rest differ by rounding, as passes \
         of different width add up in different order.",
    ),
    ("fallbacks", "Rejections that left no residual by rounding and drew from the target instead."),
    ("estimated", "Not measured: the rounds of the longest measured K, cut short. It says nothing of speed."),
    (
        "TTFT",
        "Time from when a request gets its place in the batch to its first token. Queue is the time until then, from \
         the start of the run, at which all requests came.",
    ),
    ("TPOT", "Time from a request's first to its last token, by token after the first."),
    (
        "ITL",
        "Time between a token and the one before. The tokens of a round come together: the first of them waits for the \
         round, the others for nothing, so the median can be 0 and the slow ones show as percentiles.",
    ),
    (
        "goodput",
        "Output tokens per second of the requests that kept the stated limits on TTFT and TPOT; a dash where none were \
         stated.",
    ),
    (
        "provisional KV",
        "Rows that a round writes before its verdict, in all places of the batch: K + 1 of the target and K - 1 of the \
         drafter each.",
    ),
    (
        "chance of acceptance",
        "What the declared verifier pays for, averaged over training text. Where drafts are sampled, the overlap: the sum \
         over tokens of the smaller of the two probabilities, target's and drafter's. Where a draft is the drafter's \
         likeliest token, the target's probability of it. It stands after the true text, hence is a proxy: at run time a \
         draft follows drafts.",
    ),
];
